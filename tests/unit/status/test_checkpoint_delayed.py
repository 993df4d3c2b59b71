"""The condition CheckpointDelayed says what holds up the next checkpoint."""

from __future__ import annotations

import pytest

from dtj.cli.sentences import sentence_of
from dtj.status.events import happenings
from dtj.status.progress_report import read_report
from tests.unit.support.pods import Life, condition, healthy

HELD_UP = "checkpoint s3://bucket/job/checkpoints/7 waits for files of worker-1"


@pytest.fixture
def life() -> Life:
    return Life(artifacts={"uri": "s3://bucket/jobs"})


def test_it_holds_while_a_checkpoint_is_held_up_and_makes_one_event(life: Life) -> None:
    status = life.see(*healthy(), checkpoint_held_up="")
    assert condition(status, "CheckpointDelayed") == {}
    old = life.job.status
    status = life.see(*healthy(), checkpoint_held_up=HELD_UP)
    delayed = condition(status, "CheckpointDelayed")
    assert (delayed["status"], delayed["reason"]) == ("True", "CheckpointIncomplete")
    assert delayed["message"] == HELD_UP
    assert sentence_of(life.job.status) == f"The job trains: {HELD_UP}"
    told = [each for each in happenings(old, life.job.status) if each.reason == "CheckpointIncomplete"]
    assert [(each.type, each.message) for each in told] == [("Warning", HELD_UP)]
    old = life.job.status
    life.see(*healthy(), checkpoint_held_up=HELD_UP)
    assert "CheckpointIncomplete" not in [each.reason for each in happenings(old, life.job.status)]
    life.see(*healthy())
    assert life.job.status.holds(delayed["type"]), "nothing is reported: nothing is known to have changed"
    status = life.see(*healthy(), checkpoint_held_up="")
    assert condition(status, "CheckpointDelayed")["status"] == "False"


def test_it_ends_with_the_attempt(life: Life) -> None:
    life.see(*healthy(), checkpoint_held_up=HELD_UP)
    status = life.see(*healthy()[1:])
    assert condition(status, "CheckpointDelayed")["reason"] == "NotRunning"


@pytest.mark.parametrize(
    ("artifacts", "held_up"),
    [
        ('{"uri": "s3://b"}', ""),
        ('{"heldUp": "file\\u0007"}', "file\ufffd"),
        ('{"heldUp": 7}', None),
        ("[]", None),
        ("null", None),
    ],
)
def test_a_report_is_read_with_care(artifacts: str, held_up: str | None) -> None:
    report, _ = read_report(f'{{"artifacts": {artifacts}}}')
    assert report is not None
    assert report.checkpoint_held_up == held_up
