"""`status.state`: which word stands for a job, from when on, and what it costs.

* the words, and their table in the documentation
* what passes within seconds is no state
* GPUs over all replicas
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dtj.api.reasons import FAILED, FAILURE_CLASSES, Reason
from dtj.api.status import Condition, Conditions, Failure, JobStatus, Phase
from dtj.status.state import FAILURE_WORDS, LASTING_SECONDS, JobState, shown_state, state_of
from dtj.status.times import written_time
from tests.unit.support.pods import at
from tests.unit.support.world import World

PAGE = Path(__file__).parents[3] / "docs/status.md"


def status(phase: str, *conditions: str, failure: str | None = None) -> JobStatus:
    """A status whose conditions are written as `Type=Status:Reason`, and hold since the start."""
    return JobStatus(
        phase=Phase(phase),
        start_time=written_time(at(0)),
        failure=Failure(failure_class=failure) if failure else None,
        conditions=[
            Condition.model_validate(
                {
                    "type": kind,
                    "status": value,
                    "reason": reason,
                    "message": f"why\n  {reason}",
                    "lastTransitionTime": written_time(at(0)),
                }
            )
            for kind, value, reason in (re.split("[=:]", each) for each in conditions)
        ],
    )


@pytest.mark.parametrize(
    ("job", "word", "reason"),
    [
        (status("Pending", "Running=False:PodsStarting"), "Pending", None),
        (status("Pending", "Running=False:Queued"), "Queued", "Queued"),
        (status("Pending", "Running=False:Unschedulable"), "Unschedulable", "Unschedulable"),
        (status("Starting", "Running=False:ImagePull"), "ImagePullBackOff", "ImagePull"),
        (status("Pending", "Running=False:QuotaExceeded"), "QuotaExceeded", "QuotaExceeded"),
        (status("Starting", "Running=False:PreStartHookError"), "PreStartHookError", "PreStartHookError"),
        (status("Starting", "Running=False:it is late"), "Starting", "it is late"),
        (status("Running", "Running=True:JobRunning"), "Running", None),
        (status("Running", "Running=True:JobRunning", "Stalled=True:NoProgress"), "Stalled", "NoProgress"),
        (status("Running", "Running=True:JobRunning", "Stalled=Unknown:NoAnswer"), "Running", None),
        (status("Running", "CheckpointDelayed=True:CheckpointX"), "CheckpointDelayed", "CheckpointX"),
        (status("Running", "Created=True:SpecInvalid", "Running=True:JobRunning"), "SpecInvalid", "SpecInvalid"),
        (
            status("Restarting", "Running=False:Backoff", "Restarting=True:ApplicationFailure"),
            "Restarting",
            "ApplicationFailure",
        ),
        (status("Restarting", "Running=False:Forbidden", "Restarting=True:X"), "Forbidden", "Forbidden"),
        (status("Suspended", "Suspended=True:JobSuspended"), "Suspended", "JobSuspended"),
        (status("Succeeded", "Running=False:JobSucceeded"), "Succeeded", None),
        (status("Failed", "Failed=True:DeadlineExceeded", failure="OOMKilled"), "OOMKilled", "DeadlineExceeded"),
        (
            status("Failed", "Failed=True:BackoffLimitExceeded", failure="ApplicationError"),
            "BackoffLimitExceeded",
            "BackoffLimitExceeded",
        ),
        # A waiting job has this word: the failed one says which deadline passed.
        (
            status("Failed", "Failed=True:StartDeadlineExceeded", failure="Unschedulable"),
            "StartDeadlineExceeded",
            "StartDeadlineExceeded",
        ),
        # The program chose the class.
        (status("Failed", "Failed=True:DeadlineExceeded", failure="Running"), "DeadlineExceeded", "DeadlineExceeded"),
        (status("Failed"), "Failed", None),
    ],
)  # fmt: skip
def test_a_job_has_one_word_and_its_reason(job: JobStatus, word: str, reason: str | None) -> None:
    message = reason and f"why {reason}"
    assert state_of(job, at(LASTING_SECONDS)) == JobState(word, message)
    assert shown_state(job) == (word, message)


def test_a_job_that_the_operator_has_not_seen_has_no_state() -> None:
    assert state_of(JobStatus(), at(0)) is None
    assert shown_state(JobStatus()) == (None, None)


def test_what_keeps_pods_from_running_is_a_state_once_it_lasts() -> None:
    job = status("Pending", "Running=False:Unschedulable")
    assert state_of(job, at(2)) == JobState("Pending", "why Unschedulable", LASTING_SECONDS - 2)
    # A restart, or the admission by a queue, begins anew.
    again = job.model_copy(update={"restart_time": written_time(at(60))})
    assert state_of(again, at(62)) == JobState("Pending", "why Unschedulable", LASTING_SECONDS - 2)


def test_a_long_reason_is_one_line_of_bounded_length() -> None:
    job = status("Suspended", "Suspended=True:JobSuspended")
    long = job.conditions[0].model_copy(update={"message": "a\n" * 500})
    job = job.model_copy(update={"conditions": Conditions([long])})
    message = shown_state(job)[1] or ""
    assert len(message) == 256
    assert message.endswith("a…")


def test_the_words_are_documented() -> None:
    words = set(re.findall(r"`([A-Z]\w+)`", PAGE.read_text().partition("## State")[2].partition("\n## ")[0]))
    living = {
        "ImagePullBackOff", "Stalled", "CheckpointDelayed", "ArtifactsIncomplete", Reason.SPEC_INVALID, Reason.QUEUED,
        Reason.UNSCHEDULABLE, Reason.POD_NOT_STARTED, Reason.QUOTA_EXCEEDED, Reason.FORBIDDEN, Reason.NAME_TAKEN,
        Reason.CREATE_CONTAINER_CONFIG_ERROR, Reason.CREATE_CONTAINER_ERROR, Reason.RUN_CONTAINER_ERROR,
        Reason.CRASH_LOOP_BACK_OFF, Reason.SIDECAR_ENDED, Reason.SCHEDULER_MISSING, Reason.MPIJOB_NOT_SERVED,
        Reason.MPIJOB_NOT_TAKEN_UP, Reason.API_SERVER_ERROR, Reason.API_UNREACHABLE, Reason.NAMESPACE_FULL,
    }  # fmt: skip
    assert {*Phase, *living, *FAILED} <= words
    assert words - {*Phase, *living, *FAILED} <= {*FAILURE_WORDS}
    assert not living & (FAILURE_WORDS | {*FAILED}), "a word says whether the job may still succeed"
    assert {*FAILURE_CLASSES} > FAILURE_WORDS


async def test_an_unschedulable_job_costs_one_write_more_and_only_once() -> None:
    world = World(strategy="TorchDistributed")
    world.kubelet.places = 0
    while world.elapsed() < LASTING_SECONDS - 5:
        await world.step()
    assert world.status["state"] == "Pending"
    assert "no node takes" in world.status["message"]
    before = len(world.cluster.calls)
    await world.until(lambda: world.status["state"] == "Unschedulable")
    for _ in range(60):
        await world.step()
    assert [(call.verb, call.kind) for call in world.cluster.calls[before:]] == [
        ("patch", "DistributedTrainingJob")
    ]


async def test_gpus_are_those_of_all_replicas() -> None:
    world = World(
        strategy="TorchDistributed",
        replicaSpecs={"worker": {"replicas": 3, "gpus": 2}},
        runPolicy={"backoffLimit": 0},
    )
    await world.until(lambda: world.phase == "Running")
    assert (world.status["state"], world.status["gpus"]) == ("Running", 6)
    world.kubelet.program = lambda pod, ran: (3, "")
    await world.until(lambda: world.phase == "Failed")
    assert (world.status["state"], world.status["gpus"]) == ("BackoffLimitExceeded", 6)
