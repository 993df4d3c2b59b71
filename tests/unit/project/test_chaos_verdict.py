"""The verdict of a chaos trial: the cost of a fault, read from metrics.jsonl."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cluster.chaos.faults import Hit
from tests.cluster.chaos.report import Row, table
from tests.cluster.chaos.trainings import Moment
from tests.cluster.chaos.verdict import Cost, differences, seconds_to_recover, steps_trained_again

HIT = Moment(datetime(2030, 1, 1, 12, 0, 10, tzinfo=UTC), step=42, saved=25)


def row(second: float, step: int, kind: str = "train") -> dict[str, Any]:
    time = datetime.fromtimestamp(HIT.at.timestamp() + second, UTC)
    return {"kind": kind, "time": time.isoformat(), "step": step}


RESTARTED = [
    row(-10, 0, "start"),
    row(-1, 40),
    row(2, 45),  # ranks that have not noticed yet
    row(20, 30, "start"),
    row(21, 35),
    row(23, 45),
    row(24, 50),
]


def test_recovered_is_a_training_that_is_further_than_it_was() -> None:
    assert seconds_to_recover(RESTARTED, HIT) == pytest.approx(24)


def test_one_that_never_stopped_costs_its_longest_pause() -> None:
    rows = [row(-5, 0, "start"), row(-1, 40), row(0.5, 44), row(3, 50), row(3.5, 55)]
    assert seconds_to_recover(rows, HIT) == pytest.approx(2.5)
    assert steps_trained_again(rows, HIT) == 0


def test_steps_are_trained_again_from_the_checkpoint_on() -> None:
    assert steps_trained_again(RESTARTED, HIT) == 15


def test_steps_that_were_seen_count_although_their_rows_were_lost() -> None:
    assert (
        steps_trained_again([row(-10, 0, "start"), row(-9, 10), row(20, 25, "start"), row(25, 60)], HIT) == 17
    )


AGAIN = Hit("", "application", ("Signal",), times=2, in_place=1, nodes={"a": 2}, pods=["x-worker-1"])
RIGHT: dict[str, Any] = {
    "attempt": 2,
    "restarts": {"application": 2, "inPlace": 1, "infrastructure": 0},
    "nodeFailures": {"a": 2},
    "failure": {"class": "Signal", "pod": "x-worker-1"},
}


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({}, 0),
        ({"attempt": 1}, 1),
        ({"restarts": {"application": 2, "infrastructure": 0}}, 1),
        ({"nodeFailures": {"a": 1}}, 1),
        ({"failure": {"class": "ConnectionLost", "pod": "x-worker-0"}}, 2),
        ({"failure": {}}, 2),
    ],
)
def test_the_status_must_be_that_of_the_hit(said: dict[str, Any], wrong: int) -> None:
    assert len(differences({**RIGHT, **said}, "Horovod", AGAIN)) == wrong


def test_the_table_is_markdown() -> None:
    cost = Cost({"application": 1, "infrastructure": 0}, 12.34, 7, 0.87654)
    rows = [Row("S3 down", "Horovod", "40 s", "Succeeded", cost), Row("x", "y", "", "WRONG: z", None)]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(rows).splitlines()]
    assert lines[2] == ["S3 down", "Horovod", "40 s", "Succeeded", "application 1", "12.3", "7", "0.877"]
    assert lines[3] == ["x", "y", "", "WRONG: z", "", "", "", ""]
    assert set("".join(lines[1])) == {"-"}
