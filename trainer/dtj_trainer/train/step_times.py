"""The times of one rank's steps: their number, mean and deviation, in constant memory."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

REPORTED_RANKS = 64
"""The slowest ranks are reported, so that the report of 5,000 ranks stays small."""


class StepTimes:
    """Welford's running mean and variance (Technometrics 4, 1962) of the seconds between calls of `step`.

    A step lasts from the request for its batch to the return of the model's `train`. Tests, checkpoints and meetings
    of the ranks are no part of it. A GPU may still compute when `train` returns: the time is then that of a later
    step, so that the mean is right but the deviation is too large.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.mean = self._squares = 0.0
        self._began = 0.0

    def begin(self) -> None:
        """Begin a step."""
        self._began = time.monotonic()

    def end(self) -> None:
        """End the step that `begin` began."""
        seconds = time.monotonic() - self._began
        self.steps += 1
        before = seconds - self.mean
        self.mean += before / self.steps
        self._squares += before * (seconds - self.mean)

    def figures(self) -> tuple[int, float, float]:
        """Return the number of steps, their mean, and the sample's standard deviation (0 for fewer than two)."""
        return self.steps, self.mean, math.sqrt(self._squares / (self.steps - 1)) if self.steps > 1 else 0.0


class RankSteps(TypedDict):
    """The steps of one rank in this attempt. Times in seconds."""

    rank: int
    steps: int
    mean: float
    deviation: float


def slowest(ranks: Sequence[tuple[int, float, float]]) -> list[RankSteps]:
    """Return the steps of the REPORTED_RANKS slowest ranks, by rank. `ranks`: steps, mean and deviation of each."""
    rows = [
        RankSteps(rank=rank, steps=steps, mean=round(mean, 6), deviation=round(deviation, 6))
        for rank, (steps, mean, deviation) in enumerate(ranks)
        if steps
    ]
    return sorted(sorted(rows, key=lambda row: -row["mean"])[:REPORTED_RANKS], key=lambda row: row["rank"])
