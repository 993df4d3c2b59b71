"""`dtj run` of PyTorch scripts in the forms that people have: the scripts in torch_scripts know nothing of dtj."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from tests.trainer import local_runs
from tests.trainer.local_runs import DtjRun, write_job

pytestmark = pytest.mark.torch

start = local_runs.start
warm_torch = local_runs.warm_torch
SCRIPTS = Path(__file__).parent / "torch_scripts"
PYTHON, TORCHRUN, ACCELERATE = ["python"], ["torchrun"], ["accelerate", "launch", "--multi_gpu"]
ABORTED = "terminate called without an active exception"
MASTER_IP = ["--master_ip=$(MASTER_ADDR)", "--num_nodes=$(WORLD_SIZE)", "--rank=$(RANK)"]
accelerate = pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate")


FORMS = {
    "torchrun": (TORCHRUN, "multinode.py", ["8", "--snapshot_path=/dtj/checkpoints/snapshot.pt"], {}),
    "PyTorchJob": (PYTHON, "pytorchjob.py", ["--epochs=10"], {}),
    "master_ip": (PYTHON, "master_ip.py", MASTER_IP, {}),
    "spawn": (PYTHON, "spawn.py", ["--nproc={procs}"], {"startedBy": "Command"}),
    "Trainer": (PYTHON, "hf_trainer.py", [], {}),
    "accelerate": (PYTHON, "accelerated.py", [], {}),
    "accelerate launch": (ACCELERATE, "accelerated.py", [], {}),
}
"""The launcher, the script, its options, and fields of `spec.torch`."""
SHAPES = {"2x1": (2, 1), "1x2": (1, 2)}
"""Workers, and ranks in each."""
# dtj starts the ranks of the forms with `python` alike, and those of torchrun and spawn start their own.
DIAGONAL = {
    *(("torchrun", "2x1"), ("torchrun", "1x2"), ("accelerate launch", "2x1"), ("spawn", "1x2")),
    *(("PyTorchJob", "2x1"), ("master_ip", "1x2"), ("Trainer", "2x1"), ("accelerate", "1x2")),
}


def cells() -> list[ParameterSet]:
    """Each form in each shape; those off the diagonal are for `make test-whole`."""
    return [
        pytest.param(
            *(*form, *shape),
            id=f"{name}-{size}",
            marks=[
                *([] if (name, size) in DIAGONAL else [pytest.mark.whole]),
                *([accelerate] if name.startswith("accelerate") else []),
            ],
        )
        for name, form in FORMS.items()
        for size, shape in SHAPES.items()
    ]


@pytest.mark.parametrize(("launcher", "script", "options", "block", "workers", "procs"), cells())
def test_a_script_trains_in_the_world_that_was_asked_for(
    start: Callable[..., DtjRun],
    warm_torch: Path,
    tmp_path: Path,
    launcher: list[str],
    script: str,
    options: list[str],
    block: dict[str, Any],
    workers: int,
    procs: int,
) -> None:
    file = write_job(
        tmp_path,
        "line",
        [str(warm_torch / launcher[0]), *launcher[1:], str(SCRIPTS / script)],
        args=[option.replace("{procs}", str(procs)) for option in options],
        strategy="TorchDistributed",
        torch={"procsPerWorker": procs, **block},
        replicaSpecs={"worker": {"replicas": workers}},
        artifacts=None,
    )
    run = start(file)
    output = run.ended()
    found = re.findall(r"rank (\d) of (\d)(?:, local \d)?: slope ([\d.]+)", output)
    assert {(rank, world) for rank, world, _ in found} == {("0", "2"), ("1", "2")}, output
    assert {slope for _, _, slope in found} == {found[0][2]}
    assert float(found[0][2]) == pytest.approx(3, abs=0.1)
    if run.status("line").attempt == 1:
        assert len(found) == 2, output
    else:  # PyTorch may abort a process at Python's exit, if one of its threads still waits for Python's lock.
        assert ABORTED in output
