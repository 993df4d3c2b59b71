"""Follows the program's progress file: the time of the first step, and the step at a given time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from dtj_trainer import contract, progress
from dtj_trainer.background import Background
from dtj_trainer.launch.phases import PhaseLog

SAMPLE_SECONDS = 0.5
_SAMPLES = 2400


class ProgressWatch:
    """Samples the progress in the background."""

    def __init__(
        self,
        path: Path,
        phases: PhaseLog,
        otherwise: Callable[[], contract.Progress] = lambda: contract.Progress(),
    ) -> None:
        """`path`: the progress file. `otherwise`: the progress of a program that reports no step there."""
        self._path = path
        self._otherwise = otherwise
        self._phases = phases
        self._lock = threading.Lock()
        self._steps: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)

    def start(self, background: Background) -> None:
        """Sample in the background."""

        def follow() -> None:
            self.now()
            while not background.wait(SAMPLE_SECONDS):
                self.now()

        background.start(follow, "progress")

    def now(self) -> contract.Progress:
        """Return the current progress, and take a sample."""
        present = progress.read(self._path)
        if "step" not in present:
            present = {**self._otherwise(), **present}
        step = present.get("step")
        if step is not None:
            with self._lock:
                if not self._steps or self._steps[-1][1] != step:
                    self._steps.append((time.time_ns(), step))
            if step >= 1:
                self._phases.reached("firstStep")
        return present

    def step_at(self, time_ns: int) -> int | None:
        """Return the step at a wall-clock time, or the first known step for earlier times; None without any step."""
        self.now()
        with self._lock:
            if not self._steps:
                return None
            earlier = [step for seen, step in self._steps if seen <= time_ns]
            return earlier[-1] if earlier else self._steps[0][1]
