"""The `dtj` command."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from dtj.cli.main import app

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "manifests/examples/fashion-mnist-horovod.yaml"


def dtj(*words: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


def test_a_valid_file_is_said_to_be_valid() -> None:
    assert dtj("validate", EXAMPLE) == (0, f"{EXAMPLE}: fashion-mnist is valid: Horovod with 3 pods\n", "")


def test_every_fault_is_told_with_its_file_and_field(tmp_path: Path) -> None:
    job = yaml.safe_load(EXAMPLE.read_text())
    job["metadata"]["name"] = "Fashion"
    job["spec"]["replicaSpecs"] = {}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    code, out, errors = dtj("validate", file)
    assert (code, out) == (1, "")
    assert [line.split(": ")[1] for line in errors.splitlines()] == [
        "metadata.name",
        "spec.replicaSpecs.worker",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "while parsing"),
        ("", "has 0 objects"),
        ("a: 1\n---\nb: 2", "has 2 objects"),
        ("- a", "one DistributedTrainingJob is wanted"),
    ],
)
def test_a_file_that_is_no_job_ends_with_2(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    code, _, errors = dtj("validate", file)
    assert code == 2
    assert message in errors


def test_a_file_that_is_not_there_ends_with_2(tmp_path: Path) -> None:
    assert dtj("plan", tmp_path / "none.yaml")[0] == 2


def test_the_plan_is_what_the_operator_would_make() -> None:
    code, out, _ = dtj("plan", EXAMPLE)
    assert code == 0
    assert [(o["kind"], o["metadata"]["name"]) for o in yaml.safe_load_all(out)] == [
        ("Service", "fashion-mnist"),
        ("ConfigMap", "fashion-mnist-config"),
        ("Pod", "fashion-mnist-worker-0"),
        ("Pod", "fashion-mnist-worker-1"),
        ("Pod", "fashion-mnist-launcher-0"),
    ]


def test_crd_prints_the_committed_file() -> None:
    assert dtj("crd") == (0, (ROOT / "manifests/crd/distributedtrainingjobs.yaml").read_text(), "")
