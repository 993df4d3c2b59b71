"""Ranks over time as the API answers it: who was there when, how busy, and the curves of some ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from dtj.report.curves import thinned
from dtj.ui.answers import Answer
from dtj.ui.conspicuous import Conspicuous, Kind, Lately, conspicuous, lately
from dtj.ui.usage import Sample, Stay, Usage, order

MOST_CELLS = 120
"""Intervals of the strip of a rank."""
MOST_ROWS = 64
"""Ranks in the strip. The conspicuous ones come first."""
MOST_DRAWN = 8
"""Ranks whose curves are drawn."""
MOST_POINTS = 240
"""Points of a rank's curve."""
MOST_ATTEMPTS = 100
"""The newest attempts that are named."""
_SHORTEST_CELL = 5.0
_MEASURES: Sequence[tuple[str, str, Callable[[Sample], float | None]]] = (
    ("Processors", "", lambda each: each.cores),
    ("GPUs", "share", lambda each: each.gpu),
    ("Memory", "bytes", lambda each: each.memory),
    ("GPU memory", "bytes", lambda each: each.gpu_memory),
    ("Read from disks", "bytes/s", lambda each: each.read),
    ("Written to disks", "bytes/s", lambda each: each.written),
)


class AttemptStart(Answer):
    """When the first rank of an attempt began."""

    attempt: int
    time: float
    """Seconds since 1970."""


class Stayed(Answer):
    """One rank in one attempt. Times are in seconds since 1970."""

    attempt: int
    pod: str
    began: float
    ended: float


class RankRow(Answer):
    """The strip of one rank."""

    rank: str
    """The number, or `<role>-<index>` of a program that is no rank."""
    stays: list[Stayed]
    present: list[bool]
    """Whether the rank was there, by cell."""
    cores: list[float | None]
    """Processors in use on average, by cell."""
    gpu: list[float | None]
    """The utilisation of its pod's GPUs, 0 to 1, by cell."""
    lately_cores: float | None
    lately_gpu: float | None
    lately_memory: float | None
    """Bytes."""
    step_seconds: float | None
    """The mean of its steps, which a program reports at the end of the training."""
    remark: Kind | None
    """How the rank differs from the others."""


class RankCurve(Answer):
    """One figure of one rank."""

    rank: str
    times: list[float]
    """Seconds since 1970."""
    values: list[float]


class Measure(Answer):
    """One figure of several ranks over time."""

    name: str
    unit: str
    """`bytes`, `bytes/s`, `share` (0 to 1), or empty for a number."""
    curves: list[RankCurve]


class Utilisation(Answer):
    """What each rank used over time."""

    began: float | None
    """Seconds since 1970 at the begin of the first cell; null: there are no samples."""
    cell_seconds: float
    rows: list[RankRow]
    most_cores: float
    """The greatest figure of a cell."""
    rows_left_out: int
    """Ranks without a row."""
    measures: list[Measure]
    curves_left_out: int
    """Ranks without curves."""
    ranks: int
    """Ranks, and other programs, of which there are samples."""
    attempts: list[AttemptStart]
    findings: list[str]
    """Sentences about the ranks that differ from the others."""
    files_unread: int
    """Pods' files that were left out because there are too many or they have too many bytes; those of old attempts
    first."""
    bytes_read: int
    lines_left_out: int
    """Lines that are no samples."""


@dataclass(frozen=True)
class Question:
    """What is asked of the samples."""

    ranks: Sequence[str] = ()
    """Whose curves to draw; none: those that differ, then the first."""
    steps: Mapping[str, float] | None = None
    """Mean seconds of a step by rank."""
    seconds: float | None = None
    """See `dtj.ui.conspicuous.lately`."""


def utilisation_of(usage: Usage, question: Question, *, files_unread: int, bytes_read: int) -> Utilisation:
    """Return the answer. Its size has a bound, whatever the number of ranks and samples."""
    steps = question.steps or {}
    found = conspicuous(usage, steps, question.seconds)
    grid = _Grid.of([stay for stays in usage.stays.values() for stay in stays])
    chosen = _chosen(usage, found, steps)
    rows = [_row(usage.stays[rank], grid, found, steps) for rank in sorted(chosen[:MOST_ROWS], key=order)]
    asked = [rank for rank in dict.fromkeys(question.ranks) if rank in usage.stays]
    drawn = (asked or chosen)[:MOST_DRAWN]
    attempts = list(usage.attempts().items())[-MOST_ATTEMPTS:]
    return Utilisation(
        began=grid.began if usage.stays else None,
        cell_seconds=grid.seconds,
        rows=rows,
        most_cores=max((value for row in rows for value in row.cores if value is not None), default=0.0),
        rows_left_out=len(usage.stays) - len(rows),
        measures=list(_measures(usage, sorted(drawn, key=order))),
        curves_left_out=len(usage.stays) - len(drawn),
        ranks=len(usage.stays),
        attempts=[AttemptStart(attempt=number, time=time) for number, time in attempts],
        findings=list(found.sentences),
        files_unread=files_unread,
        bytes_read=bytes_read,
        lines_left_out=usage.left_out_lines,
    )


@dataclass(frozen=True)
class _Grid:
    """The cells of the strip: equal intervals from the first sample to the last."""

    began: float
    seconds: float
    cells: int

    @classmethod
    def of(cls, stays: Sequence[Stay]) -> _Grid:
        began = min((stay.began for stay in stays), default=0.0)
        span = max((stay.ended for stay in stays), default=0.0) - began
        seconds = max(_SHORTEST_CELL, span / MOST_CELLS)
        return cls(began, seconds, min(MOST_CELLS, max(1, math.ceil(span / seconds))))

    def parts(self, sample: Sample) -> Iterator[tuple[int, float]]:
        """Yield the cells that a sample covers, and its seconds in each."""
        begin = max(0.0, sample.time - sample.seconds - self.began)
        end = sample.time - self.began
        first = min(self.cells - 1, int(begin / self.seconds))
        for cell in range(first, min(self.cells - 1, int(end / self.seconds)) + 1):
            covered = min(end, (cell + 1) * self.seconds) - max(begin, cell * self.seconds)
            if covered > 0:
                yield cell, covered


def _chosen(usage: Usage, found: Conspicuous, steps: Mapping[str, float]) -> list[str]:
    """Return all ranks: those that differ, then those with the longest steps, then the first."""
    return sorted(usage.stays, key=lambda rank: (rank not in found.kinds, -steps.get(rank, 0.0), order(rank)))


def _row(stays: Sequence[Stay], grid: _Grid, found: Conspicuous, steps: Mapping[str, float]) -> RankRow:
    rank = stays[0].rank
    present = [False] * grid.cells
    cores, gpu = _Cells(grid.cells), _Cells(grid.cells)
    for sample in chain.from_iterable(stay.samples for stay in stays):
        for cell, seconds in grid.parts(sample):
            present[cell] = True
            cores.add(cell, sample.cores, seconds)
            gpu.add(cell, sample.gpu, seconds)
    now: Lately = lately(stays[-1])
    return RankRow(
        rank=rank,
        stays=[
            Stayed(attempt=stay.attempt, pod=stay.pod, began=stay.began, ended=stay.ended)
            for stay in stays[-MOST_ATTEMPTS:]
        ],
        present=present,
        cores=cores.means(3),
        gpu=gpu.means(3),
        lately_cores=now.cores,
        lately_gpu=now.gpu,
        lately_memory=now.memory,
        step_seconds=steps.get(rank),
        remark=found.kinds.get(rank),
    )


class _Cells:
    """Means over the cells, weighted by seconds."""

    def __init__(self, cells: int) -> None:
        self._sums, self._seconds = [0.0] * cells, [0.0] * cells

    def add(self, cell: int, value: float | None, seconds: float) -> None:
        if value is not None:
            self._sums[cell] += value * seconds
            self._seconds[cell] += seconds

    def means(self, digits: int) -> list[float | None]:
        return [
            round(total / seconds, digits) if seconds else None
            for total, seconds in zip(self._sums, self._seconds, strict=True)
        ]


def _measures(usage: Usage, ranks: Sequence[str]) -> Iterator[Measure]:
    for name, unit, figure in _MEASURES:
        curves = []
        for rank in ranks:
            samples = chain.from_iterable(stay.samples for stay in usage.stays[rank])
            known = [(0, value, each.time) for each in samples if (value := figure(each)) is not None]
            if known:
                points = thinned(known, MOST_POINTS)
                times = [round(time, 1) for _, _, time in points]
                curves.append(RankCurve(rank=rank, times=times, values=[value for _, value, _ in points]))
        if curves:
            yield Measure(name=name, unit=unit, curves=curves)
