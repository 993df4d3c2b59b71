"""`dtj submit` and `dtj defaults`, with a client in the place of the cluster.

* job files: names, namespaces, words after `--`, `--wait` and `--detach`
* scripts and folders: strategy, image, pods, what is sent, what is refused
* defaults of options, file and namespace
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.errors import Unreachable, Unusable
from dtj.client import LogLine, LogQuery
from dtj.client.defaults import read
from tests.unit.support.fake_client import FakeClient, call, job
from tests.unit.support.jobs import manifest
from tests.wheels import wheel

pytestmark = pytest.mark.usefixtures("client")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = copy.deepcopy(manifest("fresh"))
    made["metadata"] = {"name": "fresh"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(made))
    return path


def test_submit_makes_the_job_of_a_file(client: type[FakeClient], file: Path) -> None:
    result = call("submit", file, "--name", "try-2", "-n", "team", "--detach")
    assert (result.exit_code, result.stdout) == (0, "try-2 submitted to namespace team\n")
    assert client.jobs["try-2"].spec.image == "trainer:1"


def test_submit_and_wait_ends_with_the_jobs_outcome(client: type[FakeClient], file: Path) -> None:
    result = call("submit", file, "--wait", "--timeout", "2h")
    assert result.exit_code == 1  # A job without a status has not succeeded.
    assert ("wait", "fresh", 7200) in client.calls


def test_submit_and_follow_prints_the_lines_and_ends_with_the_jobs_outcome(
    client: type[FakeClient], file: Path
) -> None:
    result = call("submit", file, "-n", "team")
    first, line, *_, last = result.stdout.splitlines()
    assert (first, line) == ("fresh submitted to namespace team", "[rank 0] step 1")
    assert last.startswith("fresh")
    assert result.exit_code == 1  # A job without a status has not succeeded.
    assert ("logs", LogQuery(follow=True), "team") in client.calls
    assert ("wait", "fresh", None) in client.calls


def test_submit_and_follow_leaves_standard_output_to_the_machine(file: Path) -> None:
    result = call("submit", file, "-o", "json")
    assert json.loads(result.stdout)["metadata"]["name"] == "fresh"
    assert "[rank 0] step 1" in result.stderr


def test_who_stops_to_follow_is_told_that_the_job_goes_on(
    client: type[FakeClient], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> Iterator[LogLine]:
        yield LogLine("rank 0", "step 1")
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "logs", interrupted)
    result = call("submit", file)
    assert result.exit_code == 130
    *_, last = result.stderr.splitlines()
    assert last.startswith("fresh keeps running; `dtj logs fresh -n ml -f` follows it again")


def test_output_that_only_the_bucket_has_does_not_hide_the_outcome(
    client: type[FakeClient], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object, **__: object) -> Iterator[LogLine]:
        raise Unreachable("no credentials for s3://training/jobs")

    monkeypatch.setattr(client, "logs", unreadable)
    monkeypatch.setattr(client, "get", lambda *_, **__: job("Succeeded", "fresh"))
    result = call("submit", file)
    assert "can't be read: no credentials for s3://training/jobs" in result.stderr
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "fresh, Succeeded, attempt 1")

    monkeypatch.setattr(client, "get", lambda *_, **__: job("Running", "fresh"))
    client.jobs = {}
    assert getattr(call("submit", file).exception, "exit_code", 0) == 4


def test_submit_can_not_follow_for_a_time(client: type[FakeClient], file: Path) -> None:
    result = call("submit", file, "--timeout", "1h")
    assert str(result.exception) == "--timeout needs --wait"
    assert "fresh" not in client.jobs


def test_submit_refuses_two_namespaces(file: Path) -> None:
    made = yaml.safe_load(file.read_text())
    made["metadata"]["namespace"] = "ml"
    file.write_text(yaml.safe_dump(made))
    result = call("submit", file, "-n", "other")
    assert "has namespace ml" in str(result.exception)
    assert call("submit", file, "-n", "ml", "-d").exit_code == 0


def test_submit_prints_what_was_made(file: Path) -> None:
    made = json.loads(call("submit", file, "-d", "-o", "json").stdout)
    assert made["metadata"] == {"name": "fresh", "namespace": "ml"}


def test_words_replace_the_program_of_a_job_file(client: type[FakeClient], file: Path) -> None:
    assert call("submit", file, "-d", "--", "python", "other.py", "--name", "x").exit_code == 0
    spec = client.jobs["fresh"].spec
    assert (spec.command, spec.args) == (["python", "other.py", "--name", "x"], [])


def test_a_job_file_takes_no_option_of_scripts(file: Path) -> None:
    error = call("submit", file, "--workers", "3").exception
    assert str(error) == f"--workers is only for a script or a folder, and {file} is a job file"


DDP = "import torch.distributed as dist\nimport steps\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a script with a second module, and nothing in the user's own file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = tmp_path / "my-training"
    (made / ".git").mkdir(parents=True)
    (made / "train.py").write_text(DDP)
    (made / "steps.py").write_text("")
    return made


def test_a_script_becomes_a_job_with_its_folder(client: type[FakeClient], folder: Path) -> None:
    words = ("--image", "trainer:1", "--gpus", "4", "--env", "A=b=c", "--artifacts", "s3://training/jobs")
    result = call("submit", folder / "train.py", *words, "-d", "--", "--epochs", "3")
    assert result.exit_code == 0
    (name,) = client.jobs.keys() - {"mnist"}
    assert result.stdout == f"{name} submitted to namespace ml\n"
    assert result.stderr.splitlines()[:3] == [
        "train.py:1: import torch.distributed as dist → strategy TorchDistributed",
        f"{folder}: 2 files, {len(client.archive or b'')} B packed",
        "left out by .dtjignore and the default patterns: .git/",
    ]
    assert "need S3 credentials" in result.stderr
    job = client.jobs[name]
    assert name.startswith("train-")
    assert job.spec.args == ["--epochs", "3"]
    assert job.spec.own_command == ["python", "train.py"]
    assert (job.spec.worker.replicas, job.spec.worker.gpus) == (2, 4)
    assert [(each.name, each.value) for each in job.spec.env] == [("A", "b=c")]
    assert job.faults() == []
    assert b"steps.py" in gzip.decompress(client.archive or b"")


def test_the_commit_of_the_folder_is_told_to_the_job(client: type[FakeClient], folder: Path) -> None:
    (folder / ".git").rmdir()
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-b", "main"), ("add", "train.py"), ("commit", "-m", "first")):
        subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)
    assert call("submit", folder, "--image", "i", "--name", "t", "-d").exit_code == 0
    told = client.jobs["t"].metadata.annotations
    assert (told["dtj.dev/git-branch"], told["dtj.dev/git-modified"]) == ("main", "true"), "steps.py is new"
    assert len(told["dtj.dev/git-commit"]) == 40


def test_the_summary_of_a_job_without_a_bucket_says_so(client: type[FakeClient], folder: Path) -> None:
    assert "no files of the job will be kept" in call("submit", folder, "--image", "i", "-d").stderr


def test_secrets_and_accounts_reach_every_pod(client: type[FakeClient], folder: Path) -> None:
    (folder / "train.py").write_text("import horovod.torch as hvd\n")
    words = ("--image", "i", "--env-from", "wandb", "--service-account", "trainer", "--name", "t", "-d")
    assert call("submit", folder, *words).exit_code == 0
    specs = client.jobs["t"].spec.replica_specs.given()
    assert set(specs) == {"launcher", "worker"}
    for replica in specs.values():
        pod = replica.template["spec"]
        assert pod["serviceAccountName"] == "trainer"
        assert pod["containers"] == [{"name": "trainer", "envFrom": [{"secretRef": {"name": "wandb"}}]}]
    assert specs["launcher"].resources.requests == {"cpu": "100m", "memory": "128Mi"}


def test_a_dry_run_prints_a_job_file_that_is_valid(
    client: type[FakeClient], folder: Path, tmp_path: Path
) -> None:
    result = call("submit", folder, "--image", "i", "--dry-run", "-o", "yaml")
    assert client.jobs.keys() == {"mnist"}
    file = tmp_path / "job.yaml"
    file.write_text(result.stdout)
    assert call("validate", file).exit_code == 0
    assert yaml.safe_load(result.stdout)["spec"]["code"]["entrypoint"] == "train.py"


def test_a_dry_run_needs_no_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise Unreachable("no cluster is configured")

    monkeypatch.setattr("dtj.cli.submit.connect", connect)
    result = call("submit", folder, "--image", "i", "--dry-run", "-o", "json")
    assert "the defaults of the namespace are unknown: no cluster is configured" in result.stderr
    assert json.loads(result.stdout)["spec"]["image"] == "i"


def test_a_taken_name_is_refused_with_the_line_that_works(client: type[FakeClient], folder: Path) -> None:
    words = ("--image=i", "--name", "mnist", "-d", "--", "--lr", "0.1 0.2")
    error: Any = call("submit", folder, *words).exception
    assert str(error) == "there is a job mnist in namespace ml already"
    line = error.remedy
    assert line.startswith(f"dtj submit {folder} --image=i -d --name mnist-")
    assert line.endswith(" -- --lr '0.1 0.2'")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no image is given for a TorchDistributed job"),
        (
            ("--strategy", "Slurm"),
            "--strategy must be Horovod, ParameterServer or TorchDistributed, got Slurm",
        ),
        (("--ps", "2", "--image", "i"), "--ps is for parameter servers, and TorchDistributed has none"),
        (("--env", "A", "--image", "i"), "--env A: must be KEY=VALUE"),
        (("--env-file", "none", "--image", "i"), "--env-file none: No such file or directory"),
        (("--entrypoint", "../x.py"), "must be the path of a script in"),
        (("--entrypoint", "x.py"), "there is no script"),
        (("--artifacts", "bucket", "--image", "i"), "--artifacts: must be an address s3://bucket/prefix"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_missing_or_wrong_is_named(folder: Path, words: tuple[str, ...], message: str) -> None:
    error = call("submit", folder, *words).exception
    assert message in str(error)
    assert getattr(error, "exit_code", 0) == 2


def test_a_link_out_of_the_folder_is_refused_by_name(folder: Path) -> None:
    (folder / "data.txt").symlink_to("/etc/hostname")
    assert "'data.txt' is a link to /etc/hostname" in str(call("submit", folder, "--image", "i").exception)


def test_a_folder_of_several_scripts_needs_the_entrypoint(folder: Path) -> None:
    (folder / "train.py").rename(folder / "fit.py")
    error: Any = call("submit", folder, "--image", "i").exception
    assert str(error).endswith("has the scripts fit.py and steps.py, and dtj can't tell which one runs")
    assert error.remedy == "give --entrypoint train.py"
    assert call("submit", folder, "--image", "i", "--entrypoint", "fit.py", "-d").exit_code == 0


def test_variables_come_from_a_file_too(client: type[FakeClient], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("# of wandb\n\nWANDB_MODE=offline\nA=1\n")
    words = ("--env-file", tmp_path / "env", "--env", "A=2", "--image", "i", "--name", "t", "-d")
    assert call("submit", folder, *words).exit_code == 0
    assert {each.name: each.value for each in client.jobs["t"].spec.env} == {
        "WANDB_MODE": "offline",
        "A": "2",
    }


OF_NAMESPACE = """
serviceAccountName = "trainer"
[image]
TorchDistributed = "registry/torch:1"
Horovod = "registry/horovod:1"
[artifacts]
uri = "s3://theirs/jobs"
endpoint = "http://store:8333"
secretName = "s3-credentials"
[accelerator]
nodeSelector = {pool = "a100"}
"""


def test_defaults_come_from_options_then_the_file_then_the_namespace(
    client: type[FakeClient], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "given", read(OF_NAMESPACE, "ConfigMap ml/dtj-defaults"))
    file = tmp_path / "config/dtj/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('image.TorchDistributed = "mine:1"\n[artifacts]\nuri = "s3://mine/jobs"\n')
    rows = json.loads(call("defaults", "-o", "json").stdout)
    assert {row["key"]: (row["value"], row["source"]) for row in rows} == {
        "image.TorchDistributed": ("mine:1", str(file)),
        "image.Horovod": ("registry/horovod:1", "ConfigMap ml/dtj-defaults"),
        "artifacts.uri": ("s3://mine/jobs", str(file)),  # never with another one's endpoint and Secret
        "serviceAccountName": ("trainer", "ConfigMap ml/dtj-defaults"),
        "accelerator.nodeSelector": ({"pool": "a100"}, "ConfigMap ml/dtj-defaults"),
    }
    assert call("submit", folder, "--name", "t", "--node-selector", "pool=h100", "-d").exit_code == 0
    spec = client.jobs["t"].spec
    assert (spec.image, spec.artifacts and spec.artifacts.uri) == ("mine:1", "s3://mine/jobs")
    assert spec.accelerator.node_selector == {"pool": "h100"}


@pytest.mark.parametrize(
    ("words", "variable", "expected"),
    [
        ((), "", None),  # The administrator named the endpoint, not the user.
        (("--artifacts", "s3://own/jobs", "--artifacts-endpoint", "http://mine:1"), "", "http://mine:1"),
        (("--artifacts-endpoint", "http://mine:1"), "http://here:1", "http://here:1"),
        (("--artifacts-endpoint", "http://mine:1", "--endpoint", "http://near:1"), "http://here:1", "http://near:1"),
    ],
    ids=("of the namespace", "of the job", "of a variable", "of the option"),
)  # fmt: skip
def test_large_code_goes_to_the_endpoint_that_the_user_named(
    client: type[FakeClient],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    variable: str,
    expected: str | None,
) -> None:
    monkeypatch.setattr(client, "given", read(OF_NAMESPACE, "here"))
    monkeypatch.setattr("dtj.client.code_job.CONFIG_MAP_BYTES", 10)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", variable)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    assert call("submit", folder, *words, "-d").exit_code == 0
    assert ("submit", expected) in client.calls


def test_an_account_of_an_option_replaces_the_secret_of_the_namespace(
    client: type[FakeClient], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "given", read(OF_NAMESPACE, "here"))
    assert call("submit", folder, "--name", "t", "--service-account", "mine", "-d").exit_code == 0
    store = client.jobs["t"].spec.artifacts
    assert store is not None
    assert (store.uri, store.secret_name) == ("s3://theirs/jobs", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image = 1", "here: image: "),
        ('[image]\nSlurm = "x"', "here: image.Slurm"),
        ("nonsense", "here: Expected '=' after a key"),
        ('[artifacts]\nurl = "s3://b"', "here: artifacts.url: "),
        ('serviceAccountName = "A B"', "here: serviceAccountName: must be"),
    ],
)
def test_faulty_defaults_are_told(text: str, message: str) -> None:
    with pytest.raises(Unusable) as error:
        read(text, "here")
    assert message in str(error.value)


def test_packages_of_a_requirements_file_are_sent_with_the_code(
    client: type[FakeClient], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "registry", "tiny", "0.4")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "registry"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(shutil, "which", lambda _: None)  # pip, whether uv is installed or not
    (folder / "requirements.txt").write_text("tiny\ntorch\n")
    result = call("submit", folder, "--name", "t", "--image", "dtj-trainer-horovod:0.1.0", "-d")
    assert result.exit_code == 0, result.output
    assert "the image dtj-trainer-horovod:0.1.0 has torch\n" in result.stderr
    assert "packages: tiny 0.4, " in result.stderr
    code = client.jobs["t"].spec.code
    assert code is not None
    assert code.packages is not None
    assert code.packages.config_map == code.config_map
    archive = gzip.decompress(client.packages or b"")
    assert b"tiny-0.4-py3-none-any.whl" in archive
    assert b'"torch": "2.13.0' in archive, "pods compare it"
    result = call("submit", folder, "--name", "u", "--image", "own:1", "-d")
    assert isinstance(result.exception, Unusable)
    assert result.exception.remedy == "give its version, as in --python 3.11"
    (folder / ".dtjignore").write_text("requirements.txt\n")
    assert call("submit", folder, "--name", "u", "--image", "own:1", "-d").exit_code == 0
    assert client.packages is None


PAGE = (Path(__file__).parents[3] / "docs/code.md").read_text()


def test_the_page_shows_what_is_printed(
    client: type[FakeClient], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = re.findall(r"^\$ dtj (submit my-training/.*)\n((?:[^$`].*\n)+)```", PAGE, re.MULTILINE)
    (folder / "data").mkdir()
    (folder / "data/words.txt").write_text("")
    (folder / "train.py").write_text("import steps\n" + DDP)
    (tmp_path / "config/dtj").mkdir(parents=True)
    (defaults,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "config/dtj/config.toml").write_text(defaults)
    monkeypatch.chdir(tmp_path)
    result = call(*found[0].split(), "--detach")

    def lines(text: str) -> list[str]:
        return re.sub(r"train-\w{5}\b|\d+ B", "…", text).splitlines()

    printed = [*lines(result.stderr), *lines(result.stdout)]
    assert [line for line in printed if line in lines(found[1])] == lines(found[1])
    (job,) = (job for name, job in client.jobs.items() if name != "mnist")
    assert job.spec.accelerator.node_selector == {"pool": "a100"}


def test_a_run_on_this_machine_has_no_secrets_of_a_cluster(folder: Path) -> None:
    error = call("run", folder, "--env-from", "wandb").exception
    assert str(error) == "--env-from names a Secret of a cluster"
