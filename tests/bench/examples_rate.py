"""The rate of a training in examples per second, from its metrics.jsonl."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.jsonl."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def examples_per_second(rows: Sequence[Row], warm_seconds: float) -> float:
    """Of all ranks, from the first row of training that comes so long after the first of all to the last one.

    Raises ValueError where these are fewer than two.
    """
    train = [row for row in rows if row["kind"] == "train"]
    warm = [row for row in train if _seconds(train[0], row) >= warm_seconds]
    if len(warm) < 2 or not _seconds(warm[0], warm[-1]):
        raise ValueError(f"{len(warm)} rows of training after {warm_seconds:g} s: it is too short for a rate")
    done = float(warm[-1]["examples"]) - float(warm[0]["examples"])
    return done / _seconds(warm[0], warm[-1])


def mean_rate(rows: Sequence[Row], start: datetime, end: datetime) -> float:
    """Of what the rows of training themselves say that were written between two moments: tests don't count.

    Raises ValueError where there are fewer than two: the first tells of a time before, too.
    """
    within = [r for r in rows if r["kind"] == "train" and start <= datetime.fromisoformat(r["time"]) <= end]
    if len(within) < 2:
        raise ValueError(f"{len(within)} rows of training between {start} and {end}: too short for a rate")
    return statistics.fmean(float(row["examplesPerSecond"]) for row in within[1:])


def data_wait_share(rows: Sequence[Row]) -> float:
    """The mean share of their time that the ranks waited for data, the first steps left out."""
    shares = [float(row["dataWaitShare"]) for row in rows if row["kind"] == "train"]
    return statistics.fmean(shares[1:])


def _seconds(first: Row, last: Row) -> float:
    return (datetime.fromisoformat(last["time"]) - datetime.fromisoformat(first["time"])).total_seconds()
