"""The program with DistributedDataParallel, with real ranks on this machine.

* two ranks compared with one process, and with Horovod
* stops and resumes
* errors
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests import warm
from tests.patience import PATIENCE
from tests.trainer.horovod_run import MPIRUN
from tests.trainer.idx_files import write_pictures
from tests.trainer.torch_run import Run

from dtj.local.store_keeper import free_ports

pytestmark = pytest.mark.torch
NORMED = "--model=tests.trainer.normed_torch:network"


@pytest.fixture
def end() -> Iterator[list[Run]]:
    """Runs that are killed at the end of the test, if they still go on."""
    runs: list[Run] = []
    yield runs
    for run in runs:
        run.kill()


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    done = subprocess.run(
        [*MPIRUN, "-n", "2", warm.python("torch"), "-m", "tests.trainer.torch_checks"],
        env={
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_ports(1)[0]),
            "OMP_NUM_THREADS": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        },
        capture_output=True,
        text=True,
        timeout=200 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "check",
    [
        *("cnn", "SyncBatchNorm", "resnet18"),
        *("accumulation", "accumulation of one process", "Horovod's accumulation"),
        *("cnn by Horovod", "BatchNorm by Horovod"),
    ],
)
def test_two_ranks_are_one_process_on_the_whole_batch(differences: dict[str, float], check: str) -> None:
    assert differences[check] <= 1e-5


def test_bfloat16_is_less_exact(differences: dict[str, float]) -> None:
    assert 1e-5 < differences["bfloat16"] < 0.1


def test_a_stopped_run_goes_on_at_its_step(tmp_path: Path, end: list[Run]) -> None:
    small = write_pictures(tmp_path / "data", 1004, 101)
    options = ("--batch-size=8", "--epochs=40", "--log-seconds=0", "--augment", "--schedule=constant")
    stopped = Run(tmp_path / "stopped", small, 2, *options)
    end.append(stopped)
    stopped.says(r"step [1-9]\d+/2520 ")
    stopped.processes[1].terminate()
    step = int(stopped.says(r"stopped at step (\d+), with a checkpoint")[1])
    stopped.ended(143)
    # The second rank has no copy of the checkpoint: rank 0 sends the state.
    limit = f"--max-steps={step + 30}"
    resumed = Run(tmp_path / "stopped", small, 2, *options, limit).ended()
    assert f"resuming from the checkpoint of step {step}," in resumed.outputs[0]
    straight = Run(tmp_path / "straight", small, 2, *options, limit).ended()
    assert resumed.sha256 == straight.sha256


def test_a_resume_within_an_epoch_is_exact_with_batch_statistics(tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "data", 120, 20, size=8)
    options = (
        "--batch-size=8",
        NORMED,
        "--checkpoint-steps=3",
        "--max-steps=6",
        "--optimizer=adam",
        "--lr=0.001",
    )
    straight = Run(tmp_path / "straight", data, 2, *options).ended()
    shutil.copytree(tmp_path / "straight/0/checkpoints/3", tmp_path / "resumed/0/checkpoints/3")
    resumed = Run(tmp_path / "resumed", data, 2, *options).ended()
    assert "resuming from the checkpoint of step 3, epoch 1" in resumed.outputs[0]
    assert resumed.sha256 == straight.sha256
    for name, value in straight.weights.items():
        assert torch.equal(value, resumed.weights[name]), name


def test_a_single_process_needs_no_variables_and_tells_its_errors(tmp_path: Path, end: list[Run]) -> None:
    data = write_pictures(tmp_path / "data", 200, 20, size=8)
    alone = Run(tmp_path / "alone", data, 1, "--sync-batchnorm", NORMED, "--max-steps=1")
    missing = Run(tmp_path / "missing", tmp_path, 1)
    diverged = Run(tmp_path / "diverged", data, 1, "--lr=1e30", "--max-steps=20")
    error_file = tmp_path / "error.json"
    failed = Run(tmp_path / "failed", data, 1, RANK="0", TORCHELASTIC_ERROR_FILE=str(error_file))
    end += [alone, missing, diverged, failed]
    assert "rank 0 of 1, one of 1 on" in alone.ended().outputs[0]
    assert "DataNotFound: " in missing.ended(65).outputs[0]
    assert "LossNotFinite: the loss is" in diverged.ended(1).outputs[0]
    failed.ended(1)
    assert (
        "environment variable WORLD_SIZE expected" in json.loads(error_file.read_text())["message"]["message"]
    )
