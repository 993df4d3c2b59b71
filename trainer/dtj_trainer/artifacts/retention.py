"""Decides which checkpoints are kept: the newest few, the best one, and one for each period of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dtj_trainer.artifacts.manifest import MetricMode


@dataclass(frozen=True, order=True)
class Candidate:
    """The properties of a checkpoint that decide whether to keep it; ordered from the oldest to the newest.

    A checkpoint of a later claim (that is, of a later attempt; see `fence`) is newer, whatever its step: an attempt
    that starts again from 0 must not lose its first checkpoints to those of the previous attempt.
    """

    claim: int
    step: int
    metric: float | None = None
    metric_mode: MetricMode = "max"
    time: float = 0.0
    """When it was written, in seconds since 1970."""


def kept(candidates: Iterable[Candidate], newest: int, every_seconds: float = 0.0) -> set[Candidate]:
    """Keep the `newest` newest candidates (at least one) and the best one by metric; the newer of two equal ones.

    `every_seconds`: also keep the first candidate of each period of so many seconds. Periods begin at fixed times, so
    that later candidates do not change the first one of a period. 0: none is kept for its time.
    """
    ordered = sorted(candidates, key=lambda candidate: (candidate.claim, candidate.step))
    keep = set(ordered[-max(newest, 1) :])
    measured = [candidate for candidate in ordered if candidate.metric is not None]
    if measured:
        # The newest candidate with a metric decides whether a greater or a smaller metric is better.
        sign = 1.0 if measured[-1].metric_mode == "max" else -1.0
        keep.add(max(measured, key=lambda c: (sign * (c.metric or 0.0), c.claim, c.step)))
    if every_seconds > 0:
        first = {candidate.time // every_seconds: candidate for candidate in reversed(ordered)}
        keep.update(first.values())
    return keep
