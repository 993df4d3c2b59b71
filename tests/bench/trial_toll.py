"""Seconds from the start of a user's network to its first step, with the trial at the beginning and without it.

`own:Network` is the network of `bench-first-step` as a user brings it. Before the first step, a copy makes the
smallest pass of the run: on Fashion-MNIST, half a step. The trial of the export begins after the first step.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster.progress import ClusterError

_ARGUMENTS = ("--model=own:Network", "--batch-size=64", "--log-seconds=0")
_OWN = """
from dtj_trainer.torch.models.cnn import Cnn


class Network(Cnn):
    def __init__(self, channels, classes):
        super().__init__(channels, 28, 28, classes)
"""
_UNTRIED = """
from dtj_trainer.torch import trial

trial.try_passes = trial.try_export = lambda *_: None
"""
_START = """
import runpy

runpy.run_module("dtj_trainer.programs.torch_image_classification", run_name="__main__")
"""


def ways(data: Path) -> dict[str, partial[float]]:
    """Return both ways to start the same training. Each call returns seconds."""
    return {
        "a user's network: seconds to its first step, tried": partial(_first_step, data, _START),
        "a user's network: seconds to its first step, not tried": partial(
            _first_step, data, _UNTRIED + _START
        ),
    }


def _first_step(data: Path, program: str) -> float:
    with TemporaryDirectory(prefix="dtj-bench-") as folder:
        Path(folder, "own.py").write_text(_OWN)
        begun = time.monotonic()
        with subprocess.Popen(
            [sys.executable, "-c", program, f"--data={data}", *_ARGUMENTS],
            cwd=folder,
            env=os.environ | {"DTJ_ROOT": folder, "PYTHONPATH": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            said = []
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    said.append(line)
                    if "step 1/" in line:
                        return time.monotonic() - begun
            finally:
                process.kill()
    raise ClusterError(f"there was no first step:\n{''.join(said)[-2000:]}")
