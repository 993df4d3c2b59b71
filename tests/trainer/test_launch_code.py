"""dtj-launch with the archive of `spec.code`: where it is unpacked, how programs see it, and what is refused."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from pathlib import Path

import pytest

from dtj_trainer.artifacts.s3 import make_client, parse_s3_uri
from dtj_trainer.artifacts.store import open_store
from dtj_trainer.contract.code_archive import CodeError, digest_of, pack
from dtj_trainer.contract.history import History
from dtj_trainer.launch import code
from dtj_trainer.launch.settings import read_settings

HISTORY = History(
    namespace="ml", name="mnist", uid="0a1b2c3d-0", created="2026-11-25T10:00:00Z", spec_digest="ab",
    strategy="ParameterServer", world=1, code={"digest": "sha256:5"},
)  # fmt: skip
TRAIN = """
import os, sys, pathlib, helper
assert helper.__file__ == os.path.join(os.getcwd(), "helper.py"), helper.__file__
print("cwd", os.getcwd(), "path", os.environ["PYTHONPATH"].split(":")[0], "data", open("data/words.txt").read())
pathlib.Path("helper.py").write_text("raise SystemExit('a changed file')")
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A folder of two modules and a data file, packed."""
    code = tmp_path / "code"
    (code / "data").mkdir(parents=True)
    (code / "train.py").write_text(TRAIN)
    (code / "helper.py").write_text("")
    (code / "data/words.txt").write_text("hello")
    path = tmp_path / "code.tar.gz"
    with path.open("wb") as file:
        pack(((str(each.relative_to(code)), each) for each in code.rglob("*")), file)
    return path


def given(archive: Path | str, digest: str) -> dict[str, str]:
    return {"DTJ_CODE_ARCHIVE": str(archive), "DTJ_CODE_DIGEST": digest}


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [("replica", {}), ("ranks", {"DTJ_STRATEGY": "TorchDistributed", "DTJ_WORLD_SIZE": "1"})],
)
def test_each_start_of_a_program_runs_in_the_code_anew(make_workspace, archive, kind, ranks):
    pod = make_workspace(**given(archive, digest_of(archive)), DTJ_ROLE="worker", DTJ_INDEX="0", **ranks)
    for _ in range(2):
        run = pod.launch(kind, sys.executable, "train.py")
        assert run.ended() == 0, run.output
        folder = "/dtj/code" if "cwd /dtj/code" in run.output else pod.root / "code"
        assert f"cwd {folder} path {folder} data hello\n" in run.output


def test_a_command_of_its_own_runs_in_the_code(make_workspace, archive):
    pod = make_workspace(**given(archive, digest_of(archive)))
    run = pod.launch("command", sys.executable, "train.py")
    assert run.ended() == 0, run.output
    assert "data hello\n" in run.output


def test_a_relative_folder_of_checkpoints_is_relative_to_the_code_and_the_bucket_keeps_the_archive(
    make_workspace, archive, job_uri
):
    pod = make_workspace(
        **given(archive, digest_of(archive)), DTJ_ARTIFACTS_URI=job_uri, DTJ_CHECKPOINTS_DIR="output",
        DTJ_ROLE="chief", DTJ_STRATEGY="ParameterServer", DTJ_HISTORY=HISTORY.to_json(),
    )  # fmt: skip
    run = pod.python("open('output/a.ckpt', 'w').write('1'); print(open('train.py').read())")
    assert run.ended() == 0, run.output
    assert (pod.root / "checkpoints/a.ckpt").read_text() == "1"
    store = open_store(job_uri)
    assert store.get_bytes("code.tar.gz") == archive.read_bytes()
    assert json.loads(store.get_bytes("run.json"))["code"] == {"digest": "sha256:5"}


def refused(pod, *kind: str) -> dict[str, object]:
    run = pod.launch(*(kind or ("replica",)), sys.executable, "-c", "print('runs')")
    assert run.ended() == 69, run.output
    assert "runs\n" not in run.output
    return pod.termination


def test_another_digest_is_refused(make_workspace, archive):
    asked = "sha256:" + "0" * 64
    message = refused(make_workspace(**given(archive, asked)))
    assert message["class"] == "CodeUnusable"
    assert asked in str(message["message"])
    assert digest_of(archive) in str(message["message"])


def test_a_hostile_archive_and_a_missing_one_are_refused(make_workspace, tmp_path):
    hostile = tmp_path / "hostile.tar.gz"
    with tarfile.open(hostile, "w:gz", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo("../../escaped")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    message = refused(make_workspace("a", **given(hostile, digest_of(hostile))))
    assert (message["class"], message["message"]) == (
        "CodeUnusable",
        f"{hostile}: '../../escaped' leads out of the folder",
    )
    assert not list(tmp_path.rglob("escaped"))
    message = refused(make_workspace("b", **given(tmp_path / "none", "sha256:" + "0" * 64)), "worker")
    assert message["class"] == "CodeUnusable"
    assert f"the archive {tmp_path / 'none'} does not exist" in str(message["message"])


def test_an_archive_in_a_bucket(make_workspace, archive, job_uri, monkeypatch):
    uri = f"{job_uri}/code.tar.gz"
    place = parse_s3_uri(uri)
    make_client(os.environ).put_object(Bucket=place.bucket, Key=place.prefix, Body=archive.read_bytes())
    pod = make_workspace("a", **given(uri, digest_of(archive)))
    run = pod.launch("replica", sys.executable, "train.py")
    assert run.ended() == 0, run.output
    assert "data hello\n" in run.output
    assert refused(make_workspace("b", **given(f"{uri}.gz", digest_of(archive))))["class"] == "CodeUnusable"
    monkeypatch.setattr(code, "PACKED_BYTES", 9)
    settings = read_settings({"DTJ_ROOT": str(pod.root), "DTJ_POD": '{"role": "worker", "index": 0}'})
    with (
        pytest.raises(CodeError, match=r"the archive has \d+ bytes, and the maximum is 9"),
        code.local_archive(uri, settings, "code"),
    ):
        pass
