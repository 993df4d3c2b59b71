"""The curves of a run: its metrics over steps, thinned for a screen."""

from __future__ import annotations

from collections.abc import Sequence

from dtj.report.run import Row
from dtj.ui.answers import Answer

MOST_POINTS = 1000
"""Points of one curve. A screen has fewer columns of pixels."""
_MOST_CURVES = 40
"""A program may write any number of names."""
_NO_MEASURES = {"step", "totalSteps", "epoch", "epochs", "attempt", "worldSize", "batchSize", "seed"}
"""Numbers of a row that describe the run, and measure nothing."""


class Curve(Answer):
    """One measure over steps."""

    name: str
    """The kind of the rows and the name of the number in them, such as `train loss`."""
    steps: list[int]
    values: list[float]
    times: list[float]
    """Seconds since 1970 of each point."""


class Curves(Answer):
    """The curves of a run."""

    curves: list[Curve]
    restarts: list[int]
    """The first step of each attempt after the first."""
    started: float | None
    """Seconds since 1970 of the first report."""
    left_out: int
    """The number of unreadable lines in the metrics file."""


def curves_of(rows: Sequence[Row], left_out: int) -> Curves:
    """Return the curves of the numbers that the rows have, the training's first."""
    points: dict[str, list[tuple[int, float, float]]] = {}
    restarts: list[int] = []
    attempt: object = None
    for row in rows:
        now = row.values.get("attempt", attempt)
        if attempt is not None and now != attempt:
            restarts.append(row.step)
        attempt = now
        if row.kind == "start":
            continue
        for name in row.values.keys() - _NO_MEASURES:
            value = row.number(name)
            label = f"{row.kind} {name}"
            if value is not None and (label in points or len(points) < _MOST_CURVES):
                points.setdefault(label, []).append((row.step, value, row.time))
    curves = [_curve(name, thinned(points[name])) for name in sorted(points, key=_order)]
    return Curves(curves=curves, restarts=restarts, started=rows[0].time if rows else None, left_out=left_out)


def thinned(
    points: Sequence[tuple[int, float, float]], most: int = MOST_POINTS
) -> list[tuple[int, float, float]]:
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


def _curve(name: str, points: Sequence[tuple[int, float, float]]) -> Curve:
    return Curve(
        name=name,
        steps=[step for step, _, _ in points],
        values=[value for _, value, _ in points],
        times=[time for _, _, time in points],
    )


def _order(name: str) -> tuple[int, int, str]:
    kind, _, measure = name.partition(" ")
    kinds, measures = ("train", "validation", "test", "end"), ("loss", "accuracy", "examplesPerSecond")
    return (
        measures.index(measure) if measure in measures else len(measures),
        kinds.index(kind) if kind in kinds else len(kinds),
        name,
    )
