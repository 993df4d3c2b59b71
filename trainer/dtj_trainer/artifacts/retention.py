"""Decides which snapshots are kept: the newest few, the best one, one for each period of time, and an older one.

`checkpoint_removal` deletes the others in the bucket, and `local_checkpoints` those on the disk of the pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dtj_trainer.artifacts.manifest import MetricMode

ANCHOR_SECONDS = 600.0
"""The anchor is an older snapshot that is kept. It is at least this many seconds older than the newest snapshot."""


@dataclass(frozen=True, order=True)
class Candidate:
    """The properties of a snapshot that decide whether to keep it; ordered from the oldest to the newest.

    A snapshot of a later claim (that is, of a later attempt; see `fence`) is newer, whatever its number: an attempt
    that starts again from 0 must not lose its first snapshots to those of the previous attempt.
    """

    claim: int
    number: int
    metric: float | None = None
    metric_mode: MetricMode = "max"
    time: float = 0.0
    """When the snapshot was written, in seconds since 1970."""
    whole: bool = False
    """Whether the snapshot holds more than one folder of `checkpoints.save`."""
    save: str = ""
    """Identifies the folder of `checkpoints.save` in the snapshot; empty if there is none."""


def kept(candidates: Iterable[Candidate], newest: int, every_seconds: float = 0.0) -> set[Candidate]:
    """Keep the `newest` newest candidates (at least one) and the best one by metric; the newer of two equal ones.

    Of several candidates with the same folder of `checkpoints.save`, the newest counts.

    `every_seconds`: also keep the first candidate of each period of so many seconds. Periods begin at fixed times, so
    that later candidates do not change the first one of a period. 0: none is kept for its time.

    Where the newest one is of a whole folder, whose content can be torn although nothing shows it, keep an anchor,
    too: the newest one that is ANCHOR_SECONDS older. The oldest one that is not that old stays to become the anchor.
    """
    ordered = sorted(candidates, key=lambda candidate: (candidate.claim, candidate.number))
    keep = set(_newest(ordered, max(newest, 1)))
    measured = [candidate for candidate in ordered if candidate.metric is not None]
    if measured:
        # The newest candidate with a metric decides whether a greater or a smaller metric is better.
        sign = 1.0 if measured[-1].metric_mode == "max" else -1.0
        keep.add(max(measured, key=lambda c: (sign * (c.metric or 0.0), c.claim, c.number)))
    if every_seconds > 0:
        first = {candidate.time // every_seconds: candidate for candidate in reversed(ordered)}
        keep.update(first.values())
    if ordered and ordered[-1].whole:
        old = [candidate for candidate in ordered if ordered[-1].time - candidate.time >= ANCHOR_SECONDS]
        keep.update(old[-1:])
        keep.update([candidate for candidate in ordered if candidate not in old][:1])
    return keep


def _newest(ordered: list[Candidate], count: int) -> Iterator[Candidate]:
    """Yield the newest candidates, at most `count`; of those with the same folder of `save`, the newest alone."""
    saves: set[str] = set()
    for candidate in reversed(ordered):
        if candidate.save not in saves:
            yield candidate
            count -= 1
        if candidate.save:
            saves.add(candidate.save)
        if not count:
            return
