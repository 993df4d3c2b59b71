"""`dtj run` with the forms of a TFJob: the scripts in tfjob_scripts use TF_CONFIG and nothing of dtj."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.trainer import local_runs
from tests.trainer.local_runs import DtjRun, kept, write_job

pytest.importorskip("tensorflow", reason="needs the tensorflow extra")

start = local_runs.start
SCRIPTS = Path(__file__).parent / "tfjob_scripts"
PS_AND_WORKERS: dict[str, Any] = {"worker": {"replicas": 2}, "ps": {}}


def program(script: str, *options: str) -> list[str]:
    return [warm.python("tensorflow"), str(SCRIPTS / script), *options]


@pytest.mark.parametrize(
    ("leader", "roles", "primary"),
    [
        ({"chief": {"replicas": 0}}, ["ps", "worker"], "worker 0"),
        ({"master": {}}, ["master", "ps", "worker"], "master 0"),
    ],
    ids=["no chief", "master"],
)
def test_a_script_like_dist_mnist_trains_with_ps(
    start: Callable[..., DtjRun],
    tmp_path: Path,
    leader: dict[str, Any],
    roles: list[str],
    primary: str,
) -> None:
    file = write_job(
        tmp_path,
        "digits",
        program("dist_mnist.py", "--train_dir=/dtj/checkpoints"),
        strategy="ParameterServer",
        replicaSpecs=leader | PS_AND_WORKERS,
    )
    run = start(file)
    output = run.ended()
    assert f"JobSucceeded: digits-{primary.replace(' ', '-')} ended with exit code 0" in output
    (slope,) = re.findall(rf"{primary} of {re.escape(str(roles))}: step \d+, slope ([\d.]+)", output)
    assert float(slope) == pytest.approx(3, abs=0.1)
    # The other worker may take one more step before it sees the end.
    assert re.search(r"checkpoints/20\d/", kept(run, "digits"))
    assert run.status("digits").attempt == 1


def test_a_keras_script_trains_with_workers_alone(start: Callable[..., DtjRun], tmp_path: Path) -> None:
    file = write_job(
        tmp_path,
        "keras",
        program("multi_worker_keras.py", "--model_dir=/dtj/model"),
        strategy="ParameterServer",
        replicaSpecs={"chief": {"replicas": 0}, "worker": {"replicas": 2}},
    )
    run = start(file)
    output = run.ended()
    assert "JobSucceeded: keras-worker-0 ended with exit code 0" in output
    slopes = re.findall(r"worker \d of \['worker'\]: 2 in sync, loss [\d.]+, slope ([\d.]+)", output)
    assert len(set(slopes)) == 1, output
    assert float(slopes[0]) == pytest.approx(3, abs=0.1)
    assert "model/model.keras" in kept(run, "keras")
    assert run.status("keras").attempt == 1
