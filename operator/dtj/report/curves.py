"""The curves of a run: each number of its metrics over steps, thinned for a screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dtj.report.run import MetricsRow

MOST_POINTS = 1000
"""The largest number of points of a curve. A screen has fewer columns of pixels."""
_MOST_CURVES = 40
"""The largest number of curves. A program may write any number of names."""
_NO_MEASURES = {"step", "totalSteps", "epoch", "epochs", "attempt", "worldSize", "batchSize", "seed"}
"""Numbers of a row that are no measurements, and get no curve: they describe the run."""

Point = tuple[int, float, float]
"""Step, value, and time in seconds since 1970."""


@dataclass(frozen=True)
class MeasuredCurve:
    """One measure over steps."""

    name: str
    """The kind of the rows and the name of the number in them, such as `train loss`."""
    points: Sequence[Point]

    @property
    def kind(self) -> str:
        """The kind of the rows, such as `train`."""
        return self.name.partition(" ")[0]

    @property
    def measure(self) -> str:
        """What is measured, such as `loss`."""
        return self.name.partition(" ")[2]


def curves_of(rows: Sequence[MetricsRow], most: int = MOST_POINTS) -> list[MeasuredCurve]:
    """Return the curves of the numbers that the rows have, the training's first. most: points of a curve."""
    points: dict[str, list[Point]] = {}
    for row in rows:
        if row.kind == "start":
            continue
        for name in row.values.keys() - _NO_MEASURES:
            value = row.number(name)
            label = f"{row.kind} {name}"
            if value is not None and (label in points or len(points) < _MOST_CURVES):
                points.setdefault(label, []).append((row.step, value, row.time))
    names = sorted(points, key=_order)
    return [MeasuredCurve(name, thinned(points[name], most)) for name in names]


def restarts_of(rows: Sequence[MetricsRow]) -> list[int]:
    """Return the steps of the restarts: the first step of each attempt after the first."""
    restarts: list[int] = []
    attempt: object = None
    for row in rows:
        now = row.values.get("attempt", attempt)
        if attempt is not None and now != attempt:
            restarts.append(row.step)
        attempt = now
    return restarts


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most `most` points, among them the least and the greatest of each stretch: no peak is lost."""
    if len(points) <= most:
        return list(points)
    stretches = most // 2
    kept = []
    for place in range(stretches):
        stretch = range(len(points) * place // stretches, len(points) * (place + 1) // stretches)
        ends = {min(stretch, key=lambda at: points[at][1]), max(stretch, key=lambda at: points[at][1])}
        kept += [points[at] for at in sorted(ends)]
    return kept


def _order(name: str) -> tuple[int, int, str]:
    kind, _, measure = name.partition(" ")
    kinds, measures = (
        ("train", "epoch", "validation", "test", "end"),
        ("loss", "accuracy", "examplesPerSecond"),
    )
    return (
        measures.index(measure) if measure in measures else len(measures),
        kinds.index(kind) if kind in kinds else len(kinds),
        name,
    )
