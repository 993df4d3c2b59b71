"""The Kubernetes events that follow from changes of the status."""

from __future__ import annotations

import dataclasses

from dtj.api.status import ProgressStatus
from dtj.status.events import Happening, event, happenings
from tests.unit.support.jobs import UID, job
from tests.unit.support.pods import LAUNCHER, Life, ended, healthy, running, unschedulable, waiting
from tests.unit.support.pods import WORKER_0 as WORKER


def told(life: Life, *pods: dict, seconds: float = 0) -> list[tuple[str, str, str]]:  # type: ignore[type-arg]
    before = life.job.status
    life.see(*pods, seconds=seconds)
    return [(h.type, h.reason, h.message) for h in happenings(before, life.job.status)]


def test_the_life_of_a_job_in_events() -> None:
    life = Life()
    broken = ended(LAUNCHER, 3, {"class": "ApplicationError", "message": "it broke"})

    assert told(life) == [], "the condition Created says so"
    assert told(life, running(WORKER)) == []
    assert told(life, *healthy()) == [("Normal", "JobRunning", "attempt 1: all 3 pods run")]
    assert told(life, *healthy()) == []
    assert told(life, *healthy()[:2], broken) == [
        ("Warning", "JobRestarting", "attempt 1: mnist-launcher-0: it broke")
    ]
    assert told(life) == []
    assert told(life, *healthy(2)) == [("Normal", "JobRunning", "attempt 2: all 3 pods run")]
    done = ended(LAUNCHER, attempt=2)
    assert told(life, *healthy(2)[:2], done) == [
        ("Normal", "JobSucceeded", "mnist-launcher-0 ended with exit code 0")
    ]
    assert told(life) == []


def test_an_obstacle_is_told_once_and_again_when_it_is_another() -> None:
    life = Life()
    told(life)

    assert told(life, unschedulable(WORKER, "no GPU")) == [
        ("Warning", "Unschedulable", "no node takes mnist-worker-0: no GPU")
    ]
    assert told(life, unschedulable(WORKER, "no GPU"), seconds=60) == []
    assert [reason for _, reason, _ in told(life, waiting(WORKER, "ErrImagePull", "x"))] == ["ImagePull"]


def test_an_obstacle_at_the_very_first_look_is_told_too() -> None:
    reasons = [reason for _, reason, _ in told(Life(), unschedulable(WORKER, "no GPU"))]

    assert reasons == ["Unschedulable"]


def test_a_failure_is_a_warning_with_its_reason() -> None:
    life = Life(runPolicy={"backoffLimit": 0})
    told(life, *healthy())

    assert told(life, *healthy()[:2], ended(LAUNCHER, 1, {"class": "X", "message": "no"})) == [
        ("Warning", "BackoffLimitExceeded", "attempt 1: mnist-launcher-0: no")
    ]


def test_a_failed_export_is_told_once_an_attempt_also_together_with_the_end() -> None:
    said = {"exitCode": 0, "progress": {"step": 9, "exportError": "onnx can't\x1b[31m say it\nso"}}
    warning = (
        "Warning",
        "ExportFailed",
        "attempt 1: the model is not exported: onnx can't\ufffd[31m say it so; the weights are saved, see "
        "docs/export.md",
    )
    life = Life()
    told(life, *healthy())

    assert told(life, *healthy()[:2], ended(LAUNCHER, 0, said)) == [
        warning,
        ("Normal", "JobSucceeded", "mnist-launcher-0 ended with exit code 0"),
    ]
    assert told(life, *healthy()[:2], ended(LAUNCHER, 0, said)) == []

    life = Life()
    told(life, *healthy())
    names = set()
    for error in ("first", None, "second"):
        before = life.job.status
        life.see(*healthy(), progress=ProgressStatus(step=9, export_error=error))
        names |= {
            event(life.job, each, "12:00")["metadata"]["name"] for each in happenings(before, life.job.status)
        }
    assert len(names) == 1, "a program that changes its mind makes no more events"


def test_the_same_happening_has_the_same_name_and_another_one_another() -> None:
    happening = Happening("Normal", "JobRunning", "attempt 1")

    first, later = event(job(), happening, "12:00"), event(job(), happening, "12:05")

    assert first["metadata"]["name"] == later["metadata"]["name"]
    for other in (
        Happening("Normal", "JobRunning", "attempt 2"),
        Happening("Warning", "JobRunning", "attempt 1"),
    ):
        assert event(job(), other, "12:00")["metadata"]["name"] != first["metadata"]["name"]
    assert first["involvedObject"]["uid"] == UID
    again = dataclasses.replace(job(), uid="another-job-of-this-name")
    assert event(again, happening, "12:00")["metadata"]["name"] != first["metadata"]["name"]


def test_a_long_message_is_cut_to_what_the_server_takes() -> None:
    made = event(job(), Happening("Warning", "ValidationFailed", "x" * 5000), "12:00")

    assert len(made["message"]) == 1024
