"""The curves of a run as the API answers them."""

from __future__ import annotations

from collections.abc import Sequence

from dtj.report import curves
from dtj.report.run import Row
from dtj.ui.answers import Answer


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
    epochs: list[tuple[int, float]]
    """Steps and their epochs, by step, where the rows have epochs."""
    started: float | None
    """Seconds since 1970 of the first report."""
    left_out: int
    """The number of unreadable lines in the metrics file."""


def curves_of(rows: Sequence[Row], left_out: int) -> Curves:
    """Return the curves of the numbers that the rows have, the training's first."""
    return Curves(
        curves=[
            Curve(
                name=curve.name,
                steps=[step for step, _, _ in curve.points],
                values=[value for _, value, _ in curve.points],
                times=[time for _, _, time in curve.points],
            )
            for curve in curves.curves_of(rows)
        ],
        restarts=curves.restarts_of(rows),
        epochs=_epochs(rows),
        started=rows[0].time if rows else None,
        left_out=left_out,
    )


def _epochs(rows: Sequence[Row]) -> list[tuple[int, float]]:
    """Return the first step of each epoch, and the last step that has one; thinned for a screen."""
    by_step = {row.step: epoch for row in rows if (epoch := row.number("epoch")) is not None}
    steps = sorted(by_step)
    turns = [
        (step, by_step[step])
        for place, step in enumerate(steps)
        if place in (0, len(steps) - 1) or by_step[steps[place - 1]] != by_step[step]
    ]
    apart = -(-len(turns) // curves.MOST_POINTS)
    return turns[:: max(1, apart)]
