"""Models and data in the store of `dtj run`: serve, export and data by names and addresses, as the pages write them.

The user's own credentials and endpoint are others: they must not be used.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.conftest import REPOSITORY
from tests.trainer.idx_files import write_pictures
from tests.trainer.local_runs import write_run
from tests.trainer.served_models import file_of, pixels, write_model
from tests.trainer.serving_processes import dtj, serving
from tests.trainer.test_embedded_store import server, wait_for_end

from dtj.local.data_copy import copy_folder
from dtj.local.object_store import open_store
from dtj.local.runs import Runs
from dtj_trainer.artifacts.store import open_store as open_prefix

NAME, DATA = "fashion-mnist", "s3://datasets/fashion-mnist"
OTHERS = {
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
    "AWS_ACCESS_KEY_ID": "own",
    "AWS_SECRET_ACCESS_KEY": "own",
}
LOCAL = (REPOSITORY / "docs/local.md").read_text()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a `dtj` that has run a job: its model, and the data, are in the embedded store."""
    folder = tmp_path_factory.mktemp("home")
    with open_store(folder, ["datasets"]) as store:
        write_run(folder, NAME, write_model(folder / "model"))
        copy_folder(store.environment, write_pictures(folder / "set", 30, 10), DATA)
    yield folder
    wait_for_end(server(folder))


def address_of(home: Path) -> str:
    uri = Runs(home).find(NAME).job.artifacts_uri
    assert uri
    return uri


def test_the_commands_of_the_pages_serve_the_model_of_a_run(home: Path, tmp_path: Path) -> None:
    (words,) = re.findall(r"^\$ dtj serve (.*)$", LOCAL, re.MULTILINE)
    for page in ("README.md", "Makefile"):
        assert f".venv/bin/dtj serve {words}" in (REPOSITORY / page).read_text(), page
    # No command has the store open: this one starts it, and the store ends with it.
    wait_for_end(server(home))
    with serving(tmp_path, *shlex.split(words), DTJ_HOME=str(home), **OTHERS) as (_, client):
        answer = client("PUT", f"/predictions/{NAME}", file_of(pixels(0)))
        assert len(answer.json) == 5, answer
    assert f"has {NAME}" in (tmp_path / "serve.log").read_text()
    wait_for_end(server(home))


def test_the_address_of_a_run_is_served_as_printed(home: Path, tmp_path: Path) -> None:
    address = address_of(home)
    words = [address, f"a={address}", f"b={address}/model/"]
    with serving(tmp_path, *words, DTJ_HOME=str(home), **OTHERS) as (_, client):
        models = client("GET", "/models").json["models"]
    assert [model["modelName"] for model in models] == [NAME, "a", "b"]


def test_other_commands_take_addresses_of_the_store(home: Path, tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        done = dtj(tmp_path, *words, DTJ_HOME=str(home), **OTHERS)
        return done.returncode, done.stdout, done.stderr

    address = address_of(home)
    with open_store(home, []):
        assert "model/model.onnx" in run("artifacts", "ls", address)[1]
        earlier = address.replace(address[-8:], "0" * 8)
        assert run("artifacts", "ls", earlier, "--local")[0] == 3, "the store answers that there is nothing"
        assert run("artifacts", "ls", earlier)[0] == 4, "an address of the user's own store"

        ((check, said),) = re.findall(r"^\$ dtj (data check .* --local)\n(.*)$", LOCAL, re.MULTILINE)
        assert run(*shlex.split(check))[:2] == (0, said.replace("70000", "40") + "\n")
        staged = run("data", "stage", DATA, "s3://new/set", "--local", "--processes=1")
        assert staged[0] == 0, staged
        assert run("data", "check", "s3://new/set", "--local")[1].endswith(
            "40 examples can be read, 0 faults\n"
        )


def test_errors_are_a_line_and_a_remedy(home: Path, tmp_path: Path) -> None:
    address = address_of(home)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with open_store(home, ["training"]) as store:
        open_prefix(f"{address}/other", store.environment).put_bytes("model.onnx", b"")
        for words, code, said in (
            (("serve", "x=none"), 3, "none is not a folder"),
            (("serve", "x=empty"), 3, "neither empty nor its model/ has a manifest.json"),
            (("serve", f"x={address}/other"), 3, f"neither {address}/other nor its model/ has a manifest.json"),
            (("serve", "x=s3://training/x"), 4, "S3 at http://127.0.0.1:9 can't be reached"),
            (("serve", NAME, "--local", "--max-held=1"), 2, "--max-held=1 has to be at least"),
            (("export", NAME, "--local"), 3, "has no model that can be exported"),
            (("export", "empty", "--range=x"), 2, "--range=x has to be numbers"),
            (("data", "check", "empty"), 3, "empty has no train-images-idx3-ubyte.gz"),
            (("data", "stage", str(home / "set"), "file/x"), 3, "can't be created: Not a directory"),
        ):  # fmt: skip
            done = dtj(tmp_path, *words, DTJ_HOME=str(home), **OTHERS)
            assert done.returncode == code, done.stderr
            line, remedy = done.stderr.splitlines()
            assert line.startswith("dtj: ")
            assert said in line
            assert remedy.startswith("     ")


def test_damage_is_code_1(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "set", 30, 10)
    (pictures / "train-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    checked = dtj(tmp_path, "data", "check", "set")
    assert (checked.returncode, checked.stderr) == (1, "")
    assert checked.stdout.splitlines()[-1] == "set: 0 examples can be read, 1 faults"
    staged = dtj(tmp_path, "data", "stage", "set", "shards")
    assert staged.returncode == 1
    assert staged.stderr.startswith("dtj: set: train-images-idx3-ubyte.gz is not in idx format"), (
        staged.stderr
    )
