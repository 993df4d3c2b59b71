"""A training program with real Horovod ranks on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from tests import warm
from tests.patience import PATIENCE

MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-bind-to", "none")

STATISTICS = """
import horovod.{horovod} as hvd, numpy as np
from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.data.sharding import Share
from dtj_trainer.{framework}.model import {name}Model as Model
from dtj_trainer.{statistics} import statistics
from dtj_trainer.{framework}.horovod_ranks import {name}Ranks as Ranks
from dtj_trainer.train.options import parse
hvd.init()
chance = np.random.default_rng(1)
pictures = Pictures(chance.integers(0, 256, (4, 1, 12, 12)).astype("u1"), np.arange(4))
options = parse(["--model={model}"], "program", "", ("cnn", "{model}"))
model = Model(options, PictureSet(pictures, pictures, 4), {device}Ranks())
batch = model.prepare(pictures.pixels, pictures.labels)

def values():
    found = statistics(model.network)
    return [np.array(each) for each in (found.values() if isinstance(found, dict) else found)]

for count in (4, 0):
    before = values()
    model.train(batch, Share(np.arange(4), count, 4, 4), 0.1, 0)
    print(count, sum((left != right).any() for left, right in zip(before, values())) > 0)
print(model.take_sums()[2])
"""
"""A program: with examples that count, and without, whether a step changes BatchNorm's statistics."""


class Run:
    """One run of `program`, with a workspace of its own.

    The model is not exported, which takes seconds, unless an option says so.
    """

    program: ClassVar[str]
    framework: ClassVar[str] = "torch"
    """See `warm.FRAMEWORKS`."""
    environment: ClassVar[dict[str, str]] = {}

    def __init__(self, root: Path, data: Path | str, ranks: int, *options: str) -> None:
        self.root = root
        python = warm.python(self.framework)
        program = [python, "-m", self.program, f"--data={data}", "--no-export", *options]
        ours = {"DTJ_ROOT": str(root), "OMP_NUM_THREADS": "1", "DTJ_ARTIFACTS_URI": ""}
        ours["OMPI_MCA_mpi_yield_when_idle"] = "1"  # the processors are few, and shared
        self.process = subprocess.Popen(
            program if ranks == 1 else [*MPIRUN, "-n", str(ranks), *program],
            env={**os.environ, **ours, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self.output = ""

    def ended(self, code: int = 0) -> Self:
        self.output += self.process.communicate(timeout=200 * PATIENCE)[0]
        assert self.process.returncode == code, self.output
        return self

    def says(self, text: str) -> re.Match[str]:
        """Read on until a line matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if found := re.search(text, line):
                return found
        pytest.fail(f"{text!r} was never said:\n{self.output}")

    def terminate_ranks(self) -> None:
        """SIGTERM to each process below mpirun, as the launcher and the pods' ends send it."""
        below = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=True
        )
        for pid in below.stdout.split():
            os.kill(int(pid), signal.SIGTERM)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.root / "metrics.jsonl").read_text().splitlines()]


def rises(run: Run, what: str) -> list[int]:
    """By how many bytes the memory of each rank rose; see large_state."""
    return [int(found) for found in re.findall(rf"{what} rose by (\d+) bytes", run.output)]


LARGE_STATE_OPTIONS = ("--optimizer=adam", "--batch-size=8")


def assert_a_large_state_is_resumed_in_little_memory(
    run: Callable[..., Run], folder: Path, state_file: str
) -> None:
    """Save on rank 0's own disk, then resume where the other rank has no copy, and where it has one."""
    run(1).ended()
    size = (folder / f"run-0/checkpoints/1/{state_file}").stat().st_size
    without = run(2).ended()
    said = "1 ranks have no copy of the checkpoint of step 1: rank 0 sends its state"
    assert said in without.output, without.output
    shutil.copytree(folder / "run-0/checkpoints", folder / "run-1/checkpoints")
    with_copies = run(3).ended()
    assert "resuming from the checkpoint of step 2" in with_copies.output
    assert "have no copy" not in with_copies.output
    for resumed in (without, with_copies):
        assert len(rises(resumed, "resume")) == 2
        assert max(rises(resumed, "resume")) <= 1.25 * size, resumed.output
        assert max(rises(resumed, "save")) <= 0.75 * size, resumed.output
