"""`dtj new` writes valid job files, and overwrites no file.

* every combination of flags gives a valid file
* comments, and the lines that are commented out
* flags that are missing or make no valid job
* files that exist
* questions on a terminal
"""

from __future__ import annotations

import string
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dtj.api.errors import Unusable
from dtj.api.job import Job
from dtj.api.job_file import read_one_job
from dtj.api.spec import JobSpec
from dtj.api.strategies import Strategy
from dtj.cli import new
from dtj.cli.main import app
from dtj_trainer.contract.distribution import version


def dtj_new(*words: object, answers: Sequence[str] = ()) -> str:
    """Standard output; raises what the command raised."""
    done = CliRunner().invoke(
        app,
        ["new", *map(str, words)],
        input="".join(f"{answer}\n" for answer in answers),
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def made(*words: object) -> Job:
    return read_one_job(dtj_new(*words, "--yes", "--output", "-"), "job.yaml")[1]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new, "has_terminal", lambda: True)


def test_the_image_of_the_strategy_comes_from_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made("mnist", "--registry=registry.example.com/dtj/").spec.image == (
        f"registry.example.com/dtj/dtj-trainer-horovod:{version()}"
    )
    assert made("mnist", "--registry=registry.example.com/dtj", "--image=mine:1").spec.image == "mine:1"
    monkeypatch.setenv("DTJ_IMAGE_REGISTRY", "localhost:5000")
    assert made("mnist").spec.image == f"localhost:5000/dtj-trainer-horovod:{version()}"


TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=12)
NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=20)
URIS = st.builds(lambda bucket, path: f"s3://{bucket}xx/{path}", NAMES, NAMES)
FLAGS = st.fixed_dictionaries(
    {},
    optional={
        "--image": st.builds("{}/{}:1.0".format, NAMES, NAMES),
        "--command": st.builds(
            lambda words: "python " + " ".join(f"'{w.replace(chr(39), '')}'" for w in words), st.lists(TEXT)
        ),
        "--workers": st.integers(1, 64),
        "--gpus": st.integers(0, 8),
        "--data": URIS,
    },
)
STORES = st.fixed_dictionaries(
    {"--artifacts": URIS},
    optional={"--endpoint": st.just("http://s3.local:8333"), "--secret": NAMES},
)
SERVERS = st.fixed_dictionaries(
    {"--strategy": st.just("ParameterServer")}, optional={"--ps": st.integers(1, 9), "--evaluator": st.none()}
)
WORKERS_ALONE = st.fixed_dictionaries(
    {}, optional={"--strategy": st.sampled_from(["Horovod", "TorchDistributed"])}
)


@settings(max_examples=100)
@given(NAMES, FLAGS, STORES | st.just({}), SERVERS | WORKERS_ALONE)
def test_whatever_the_flags_the_file_is_valid_and_says_what_they_say(
    name: str, flags: dict[str, Any], store: dict[str, str], strategy: dict[str, Any]
) -> None:
    given_flags = flags | store | strategy
    words = [word for flag, value in given_flags.items() for word in (flag, value) if word is not None]

    job = made(name, *words)

    roles, artifacts = job.spec.replica_specs, job.spec.artifacts
    assert job.name == name
    assert job.spec.strategy == given_flags.get("--strategy", "Horovod")
    assert job.spec.image == given_flags.get("--image", job.spec.image)
    assert roles.worker is not None
    assert roles.worker.replicas == given_flags.get("--workers", 2)
    assert roles.worker.gpus == given_flags.get("--gpus", 0)
    assert (roles.ps and roles.ps.replicas) == (
        given_flags.get("--ps", 1) if strategy.get("--strategy") == "ParameterServer" else None
    )
    assert (roles.evaluator is not None) == ("--evaluator" in given_flags)
    assert (job.spec.data and job.spec.data.uri) == given_flags.get("--data")
    assert (artifacts and artifacts.uri) == given_flags.get("--artifacts")
    assert (artifacts and artifacts.secret_name) == given_flags.get("--secret")


def test_the_command_is_split_as_a_shell_does() -> None:
    assert made("--command", "python train.py --name 'a  b' --line \"x\ny\"").spec.command == [
        "python", "train.py", "--name", "a  b", "--line", "x\ny",
    ]  # fmt: skip


def test_the_comments_are_those_of_the_resource() -> None:
    text = dtj_new("--yes", "--output", "-")

    assert f"# {JobSpec.model_fields['image'].description}" in text
    assert max(map(len, text.splitlines())) <= 102


def test_what_is_commented_out_is_valid_too() -> None:
    text = dtj_new("--yes", "--output", "-", "--artifacts", "s3://bucket")
    known = "|".join(
        (
            "env",
            "resources",
            "accelerator",
            "data",
            "endpoint",
            "secretName",
            "resume",
            "active",
            "start",
            "ttl",
        )
    )
    lines = [
        line.replace("# ", "", 1)
        if any(line.strip().startswith(f"# {name}") and ": " in line for name in known.split("|"))
        else line
        for line in text.splitlines()
    ]

    _, job = read_one_job("\n".join(lines), "job.yaml")

    assert job.spec.artifacts is not None
    assert job.spec.artifacts.secret_name == "s3-credentials"
    assert job.spec.run_policy.active_deadline_seconds == 86400
    assert job.spec.run_policy.start_deadline_seconds == 900
    assert job.spec.run_policy.ttl_seconds_after_finished == 604800


def test_a_pytorch_job_needs_its_strategy_alone() -> None:
    job = made("--strategy", "TorchDistributed")

    assert job.spec.command == ["python", "-m", "dtj_trainer.programs.torch_image_classification"]
    assert job.spec.image.startswith("dtj-trainer-horovod:")
    assert job.spec.torch is None


def test_ps_alone_means_parameter_servers() -> None:
    assert made("--ps", 2).spec.strategy == Strategy.PARAMETER_SERVER


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--strategy", "Horovod", "--ps", 2], "--ps needs --strategy ParameterServer"),
        (["--strategy", "TorchDistributed", "--ps", 2], "--ps needs --strategy ParameterServer"),
        (["--strategy", "Horovod", "--evaluator"], "--evaluator needs --strategy ParameterServer"),
        (["My-Job"], "NAME: 'My-Job' is not a DNS label"),
        (["--workers", 0], "--workers: must be at least 1, got 0"),
        (["--data", "/data"], "--data: must be an address s3://bucket/prefix, or file:///path of a volume"),
        (["--secret", "s3"], "--artifacts: required"),
        (["--command", "python 'train"], "--command: No closing quotation"),
    ],
)
def test_what_makes_no_valid_job_is_refused(words: list[object], message: str) -> None:
    with pytest.raises(Unusable) as caught:
        dtj_new(*words, "--yes", "--output", "-")

    assert caught.value.message.startswith(message)


def test_without_a_terminal_the_flags_that_are_needed_are_named() -> None:
    with pytest.raises(
        Unusable, match=r"^not given: NAME, --command; without a terminal, dtj can't ask for "
    ):
        dtj_new("--strategy", "Horovod")


def test_without_a_terminal_the_needed_flags_are_enough() -> None:
    assert "train.py" in dtj_new(
        "mnist", "--strategy", "Horovod", "--command", "python train.py", "--output", "-"
    )


def test_a_file_that_is_there_stays_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dtj_new("mnist", "--yes")
    before = Path("mnist.yaml").read_text()

    with pytest.raises(Unusable, match=r"mnist.yaml: the file exists already") as caught:
        dtj_new("mnist", "--yes", "--workers", 3)
    assert "--force" in (caught.value.remedy or "")
    assert Path("mnist.yaml").read_text() == before

    dtj_new("mnist", "--yes", "--workers", 3, "--force")
    assert "replicas: 3" in Path("mnist.yaml").read_text()


def test_nothing_is_asked_for_a_file_that_is_there(terminal: None, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.touch()

    with pytest.raises(Unusable, match="the file exists already"):
        dtj_new("--output", file)


def test_a_terminal_is_asked_only_what_matters(terminal: None, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"

    dtj_new("--gpus", 1, "--output", file, answers=["mnist", "", "", "python train.py", "4", "", ""])

    _, job = read_one_job(file.read_text(), "job.yaml")
    assert (job.name, job.spec.strategy, job.spec.command) == ("mnist", "Horovod", ["python", "train.py"])
    assert job.spec.replica_specs.worker is not None
    assert (job.spec.replica_specs.worker.replicas, job.spec.replica_specs.worker.gpus) == (4, 1)
    assert (job.spec.data, job.spec.artifacts) == (None, None)
    assert "# This image is for CPUs: docs/gpu-images.md of dtj builds one for GPUs." in file.read_text()


def test_a_wrong_answer_is_asked_for_again(terminal: None, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    answers = ["Mnist", "mnist", "MPI", "parameterserver", "", "", "many", "0", "2", "3", "", "", "bucket"]
    answers += ["s3://bucket/jobs", "", "s3-credentials"]

    dtj_new("--output", file, answers=answers)

    _, job = read_one_job(file.read_text(), "job.yaml")
    assert (job.name, job.spec.strategy) == ("mnist", "ParameterServer")
    assert job.spec.replica_specs.ps is not None
    assert job.spec.replica_specs.ps.replicas == 3
    assert job.spec.artifacts is not None
    assert (job.spec.artifacts.uri, job.spec.artifacts.secret_name) == ("s3://bucket/jobs", "s3-credentials")


def test_standard_input_is_asked_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)

    assert new.has_terminal()
