"""The answer about ranks over time: their attempts, their use of resources by cell, and curves of some ranks. Pure.

`ranks` calls it. `usage` reads the samples, and `outliers` finds the ranks that differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from dtj.report.curves import thinned
from dtj.ui.answers import ApiAnswer
from dtj.ui.outliers import Kind, Lately, Outliers, lately, outliers_of
from dtj.ui.usage import RankSample, RankUsage, Stay, order

MOST_CELLS = 120
"""The largest number of cells, equal intervals of time, of a rank."""
MOST_ROWS = 64
"""The largest number of ranks with cells. Outliers come first."""
MOST_DRAWN = 8
"""The largest number of ranks with curves."""
MOST_POINTS = 240
"""The largest number of points of a curve."""
MOST_ATTEMPTS = 100
"""The largest number of attempts, the newest ones."""
_SHORTEST_CELL = 5.0
_MEASURES: Sequence[tuple[str, str, Callable[[RankSample], float | None]]] = (
    ("Processors", "", lambda each: each.cores),
    ("GPUs", "share", lambda each: each.gpu),
    ("Memory", "bytes", lambda each: each.memory),
    ("GPU memory", "bytes", lambda each: each.gpu_memory),
    ("Read from disks", "bytes/s", lambda each: each.read),
    ("Written to disks", "bytes/s", lambda each: each.written),
)


class AttemptStart(ApiAnswer):
    """The begin of the first rank of an attempt."""

    attempt: int
    time: float
    """Seconds since 1970."""


class Stayed(ApiAnswer):
    """One rank in one attempt. Times are in seconds since 1970."""

    attempt: int
    pod: str
    began: float
    ended: float


class RankRow(ApiAnswer):
    """The cells of one rank."""

    rank: str
    """The number, or `<role>-<index>` of a program that is no rank."""
    stays: list[Stayed]
    present: list[bool]
    """Whether the rank ran, by cell."""
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
    """The way in which the rank differs from the others."""


class RankCurve(ApiAnswer):
    """One figure of one rank."""

    rank: str
    times: list[float]
    """Seconds since 1970."""
    values: list[float]


class Measure(ApiAnswer):
    """One figure of several ranks over time."""

    name: str
    unit: str
    """`bytes`, `bytes/s`, `share` (0 to 1), or empty for a number."""
    curves: list[RankCurve]


class UtilisationAnswer(ApiAnswer):
    """The use of resources by each rank over time."""

    began: float | None
    """Seconds since 1970 at the begin of the first cell; null: there are no samples."""
    cell_seconds: float
    rows: list[RankRow]
    most_cores: float
    """The largest number of processors of a cell."""
    rows_left_out: int
    """The number of ranks without a row."""
    measures: list[Measure]
    curves_left_out: int
    """The number of ranks without curves."""
    ranks: int
    """The number of ranks and other programs with samples."""
    attempts: list[AttemptStart]
    findings: list[str]
    """Sentences about the ranks that differ from the others."""
    files_unread: int
    """The number of files that were not read because they exceed a limit; those of old attempts first."""
    bytes_read: int
    lines_left_out: int
    """The number of lines that are no samples."""


@dataclass(frozen=True)
class Question:
    """The parameters of a request."""

    ranks: Sequence[str] = ()
    """The ranks with curves; empty: outliers, then the first ranks."""
    steps: Mapping[str, float] | None = None
    """Mean seconds of a step by rank."""
    seconds: float | None = None
    """See `dtj.ui.outliers.lately`."""


def utilisation_of(
    usage: RankUsage, question: Question, *, files_unread: int, bytes_read: int
) -> UtilisationAnswer:
    """Return the answer. Its size has a bound, whatever the number of ranks and samples."""
    steps = question.steps or {}
    found = outliers_of(usage, steps, question.seconds)
    grid = _Grid.of([stay for stays in usage.stays.values() for stay in stays])
    chosen = _chosen(usage, found, steps)
    rows = [_row(usage.stays[rank], grid, found, steps) for rank in sorted(chosen[:MOST_ROWS], key=order)]
    asked = [rank for rank in dict.fromkeys(question.ranks) if rank in usage.stays]
    drawn = (asked or chosen)[:MOST_DRAWN]
    attempts = list(usage.attempts().items())[-MOST_ATTEMPTS:]
    return UtilisationAnswer(
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

    def parts(self, sample: RankSample) -> Iterator[tuple[int, float]]:
        """Yield the cells that a sample covers, and its seconds in each."""
        begin = max(0.0, sample.time - sample.seconds - self.began)
        end = sample.time - self.began
        first = min(self.cells - 1, int(begin / self.seconds))
        for cell in range(first, min(self.cells - 1, int(end / self.seconds)) + 1):
            covered = min(end, (cell + 1) * self.seconds) - max(begin, cell * self.seconds)
            if covered > 0:
                yield cell, covered


def _chosen(usage: RankUsage, found: Outliers, steps: Mapping[str, float]) -> list[str]:
    """Return all ranks: those that differ, then those with the longest steps, then the first."""
    return sorted(usage.stays, key=lambda rank: (rank not in found.kinds, -steps.get(rank, 0.0), order(rank)))


def _row(stays: Sequence[Stay], grid: _Grid, found: Outliers, steps: Mapping[str, float]) -> RankRow:
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


def _measures(usage: RankUsage, ranks: Sequence[str]) -> Iterator[Measure]:
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
