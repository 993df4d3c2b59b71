"""A trace of some steps for TensorBoard's plugin of PyTorch's profiler, and Horovod's timeline of them."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

from dtj_trainer import contract
from dtj_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from dtj_trainer.torch.ranks import TensorRanks

log = logging.getLogger(__name__)


class StepProfile:
    """Traces the steps of `--profile-steps`, counted from 1, on rank 0. Without steps it does nothing.

    The files are below `tensorboard/profile`.
    """

    def __init__(self, steps: tuple[int, int] | None, ranks: TensorRanks) -> None:
        self._steps, self._ranks = steps, ranks
        self._folder = Path(contract.root()) / contract.TENSORBOARD / "profile"
        self._running: profile | None = None

    def before(self, step: int) -> None:
        """Start or stop. `step` counts the steps before the one that begins. All ranks call this."""
        if self._steps is None:
            return
        first, last = self._steps
        if step >= last:
            self.close()
        elif step + 1 >= first and self._running is None:
            self._start()

    def _start(self) -> None:
        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        self._running = profile(activities=kinds)
        if self._ranks.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._running.start()
        self._ranks.start_timeline(self._folder / "horovod-timeline.json")

    def close(self) -> None:
        """Write the trace, if steps were traced."""
        if self._running is None:
            return
        self._ranks.stop_timeline()
        if self._ranks.rank == 0:
            self._running.stop()
            name = f"rank-0.{time.time_ns() // 1_000_000}.pt.trace.json"
            write_whole(self._folder / name, self._write)
            log.info("the trace of steps %d to %d is in %s", *(self._steps or ()), self._folder / name)
        self._running = self._steps = None

    def _write(self, path: Path) -> None:
        assert self._running is not None
        self._running.export_chrome_trace(str(path))
