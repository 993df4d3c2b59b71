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
        started=rows[0].time if rows else None,
        left_out=left_out,
    )
