"""The times of the ranks' steps."""

from __future__ import annotations

import statistics

import pytest

from dtj_trainer.train import loop
from dtj_trainer.train.loop import REPORTED_RANKS, StepTimes, slowest


def test_figures_are_mean_and_sample_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.25, 0.5, 0.125, 1.0]
    moments = iter([moment for each in seconds for moment in (100.0, 100.0 + each)])
    monkeypatch.setattr(loop.time, "monotonic", lambda: next(moments))
    times = StepTimes()
    for _ in seconds:
        times.begin()
        times.end()
    assert times.figures() == (
        4,
        pytest.approx(statistics.mean(seconds)),
        pytest.approx(statistics.stdev(seconds)),
    )


def test_a_rank_without_two_steps_has_no_deviation() -> None:
    assert StepTimes().figures() == (0, 0.0, 0.0)
    once = StepTimes()
    once.begin()
    once.end()
    assert once.figures()[2] == 0.0


def test_of_many_ranks_the_slowest_are_reported_in_order() -> None:
    ranks = [(10, float(rank % 100), 0.0) for rank in range(5000)]
    rows = slowest(ranks)
    assert len(rows) == REPORTED_RANKS
    assert [row["rank"] for row in rows] == sorted(row["rank"] for row in rows)
    assert min(row["mean"] for row in rows) == 98.0


def test_a_rank_without_steps_is_not_reported() -> None:
    assert slowest([(0, 0.0, 0.0), (1, 2.0, 0.0)]) == [{"rank": 1, "steps": 1, "mean": 2.0, "deviation": 0.0}]
