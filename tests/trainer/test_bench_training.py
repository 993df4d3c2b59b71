"""The benchmark of trainings: figures from the measurements."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.bench.examples_rate import examples_per_second, mean_rate
from tests.bench.training import TARGETS, in_turn, ratio, told

BEGAN = datetime(2026, 11, 22, tzinfo=UTC)


def row(seconds: float, examples: int, kind: str = "train") -> dict[str, Any]:
    time = (BEGAN + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    return {"kind": kind, "time": time, "examples": examples}


def test_the_rate_is_that_of_the_time_after_the_start() -> None:
    rows = [row(0, 0, "start"), row(1, 64), row(2, 100), row(4, 1000), row(6, 3000), row(9, 9000, "test")]

    assert examples_per_second(rows, warm_seconds=3) == 1000


@pytest.mark.parametrize("seconds", [[0, 1], [0, 1, 5], [0, 4, 4]])
def test_a_training_that_is_too_short_has_no_rate(seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="too short"):
        examples_per_second([row(at, 64) for at in seconds], warm_seconds=3)


def test_the_rate_between_two_moments_is_what_the_rows_say() -> None:
    rates = [(1, 900.0), (2, 500.0), (3, 100.0), (4, 200.0), (9, 900.0)]
    rows = [row(at, 0) | {"examplesPerSecond": rate} for at, rate in rates]
    rows.insert(3, row(3.5, 0, "test") | {"examplesPerSecond": 9000.0})

    assert mean_rate(rows, BEGAN + timedelta(seconds=1.5), BEGAN + timedelta(seconds=5)) == 150
    with pytest.raises(ValueError, match="too short"):
        mean_rate(rows, BEGAN + timedelta(seconds=5), BEGAN + timedelta(seconds=10))


def test_the_ways_take_turns_in_going_first() -> None:
    calls: list[str] = []

    def way(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    rates = in_turn(3, {"ours": lambda: way("ours"), "bare": lambda: way("bare")})

    assert calls == ["ours", "bare", "bare", "ours", "ours", "bare"]
    assert rates == {"ours": [1, 4, 5], "bare": [2, 3, 6]}


def test_one_bad_round_does_not_decide() -> None:
    assert ratio([99, 10, 98], [100, 100, 100]) == 0.98


def test_each_pair_of_ways_has_its_verdict() -> None:
    names = [f"{way} {target.name}" for target in TARGETS for way in ("ours", "bare")]
    rates = {name: [95.0 if name.startswith("ours") else 100.0] for name in names}

    verdicts = told(rates).splitlines()[-len(TARGETS) :]

    assert verdicts[0] == "horovod-by-dtj/by-hand 0.950 ≥0.99 missed"
    assert verdicts[1] == "torch-by-dtj/by-hand 0.950 ≥0.97 missed"
    assert verdicts[3] == "checkpoint-up/boto3 0.950 ≥0.9 met"
