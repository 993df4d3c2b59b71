"""manifests/examples/own-script-torch/train.py, which people copy: under torchrun, and by the variables alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests import warm
from tests.patience import PATIENCE
from tests.trainer.conftest import REPOSITORY

pytestmark = pytest.mark.torch
SCRIPT = REPOSITORY / "manifests/examples/own-script-torch/train.py"


def torchrun(folder: Path, script: Path, ranks: int, epochs: int, python: str = sys.executable) -> str:
    """Run the script as its reader does by hand, its ranks by `python`; return the output."""
    places = (f"--checkpoints={folder}/checkpoints", f"--model={folder}/model")
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    done = subprocess.run(
        [warm.python("torch"), *launcher, str(script), f"--epochs={epochs}", *places],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python},
        capture_output=True,
        text=True,
        timeout=100 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


NO_THREAD_OF_GLOO_IS_LEFT = """
for file in pathlib.Path("/proc/self/task").glob("*/comm"):
    assert "gloo" not in file.read_text(), "it could abort the process at the exit of Python"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script with one point on each arm, which is fewer points than ranks, and with a check at its end."""
    text = SCRIPT.read_text()
    assert text.count("4000") == 3
    file = tmp_path / "train.py"
    file.write_text(text.replace("4000", "1") + NO_THREAD_OF_GLOO_IS_LEFT)
    return file


def test_three_ranks_with_two_points_end(tmp_path: Path, script: Path) -> None:
    assert "epoch 2: loss" in torchrun(tmp_path, script, 3, 2)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    python = warm.python("torch")
    straight = torchrun(tmp_path / "straight", SCRIPT, 2, 3, python)
    torchrun(tmp_path / "resumed", SCRIPT, 2, 2, python)
    assert "going on from epoch-2.pt" in torchrun(tmp_path / "resumed", SCRIPT, 2, 3, python)
    left, right = (torch.load(tmp_path / name / "model/spirals.pt") for name in ("straight", "resumed"))
    for name, value in left.items():
        assert torch.equal(value, right[name]), name
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", straight)]
    assert losses[-1] < losses[0]
    there = sorted(
        path.relative_to(tmp_path / "straight").as_posix() for path in tmp_path.glob("straight/*/*")
    )
    assert there == [*(f"checkpoints/epoch-{epoch}.pt" for epoch in (1, 2, 3)), "model/spirals.pt"]
