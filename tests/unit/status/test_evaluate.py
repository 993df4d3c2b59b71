"""The status of a job, computed from the observed state.

* from creation to Running
* losses, and their causes
* attempts, retries and backoff
* deadlines
* success, and the end of a failed or an invalid job
* statuses of another version
* random observations
"""

from __future__ import annotations

import itertools
import json
import re
from datetime import timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.api.crd import custom_resource_definition
from dtj.api.job import Fault, Manifest, read_status
from dtj.api.status import ArtifactsStatus, ConditionType, Phase, ProgressStatus
from dtj.status.evaluate import evaluate
from dtj.status.events import happenings
from dtj.status.failure import NODE_SETTLE_SECONDS
from dtj.status.observed import Observed
from dtj.status.times import written_time
from tests.unit.support.pods import (
    ALL,
    LAUNCHER,
    START,
    WORKER_0,
    WORKER_1,
    Life,
    at,
    condition,
    deleting,
    ended,
    evicted,
    healthy,
    pod,
    running,
    scheduled,
    unschedulable,
    views,
    waiting,
)
from tests.unit.support.structural import schema_faults

SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
STATUS_SCHEMA = SCHEMA["properties"]["status"]
BROKEN = {"class": "ApplicationError", "message": "rank 1: ValueError: no", "rank": 1, "exitCode": 3}


def ran(**spec: Any) -> Life:
    """A job that runs."""
    life = Life(**spec)
    assert life.see(*healthy())["phase"] == "Running"
    return life


# --- on the way to running ------------------------------------------------------------------------


def test_first_pass_takes_the_job_up() -> None:
    status = Life().see()

    assert status["phase"] == "Pending"
    assert status["attempt"] == 1
    assert status["startTime"] == written_time(START)
    assert condition(status, "Created")["status"] == "True"
    assert condition(status, "Running") == {
        "type": "Running",
        "status": "False",
        "reason": "PodsStarting",
        "message": "0 of 3 pods run",
        "lastTransitionTime": written_time(START),
        "observedGeneration": 1,
    }
    assert [c["type"] for c in status["conditions"]] == ["Created", "Running"]
    assert status["replicaStatuses"]["worker"]["desired"] == 2
    assert status["observedGeneration"] == 1


def test_an_init_container_whose_image_can_not_be_pulled_is_said_too() -> None:
    made = scheduled(WORKER_0)
    state = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    made["status"]["initContainerStatuses"] = [{"name": "fetch", "state": state}]
    made["status"]["containerStatuses"] = [
        {"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}
    ]

    assert condition(Life().see(made), "Running")["reason"] == "ImagePull"


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_the_normal_course_of_things_is_no_obstacle(reason: str) -> None:
    status = Life().see(waiting(WORKER_0, reason), scheduled(WORKER_1))

    assert condition(status, "Running")["reason"] == "PodsStarting"
    assert status["phase"] == "Starting"


def test_a_refusal_of_the_api_server_is_what_the_job_waits_for() -> None:
    status = Life().see(scheduled(WORKER_0), refusal=("QuotaExceeded", "Pod x can't be made: exceeded quota"))

    assert status["phase"] == "Pending"
    assert condition(status, "Running")["reason"] == "QuotaExceeded"


def test_a_job_starts_when_its_pods_have_nodes_and_runs_only_when_all_are_ready() -> None:
    life = Life()

    assert life.see(pod(WORKER_0), scheduled(WORKER_1))["phase"] == "Pending"
    assert life.see(scheduled(WORKER_0), scheduled(WORKER_1))["phase"] == "Starting"
    assert life.see(running(WORKER_0), running(WORKER_1))["phase"] == "Starting"
    assert (
        life.see(running(WORKER_0), running(WORKER_1, ready=False), running(LAUNCHER))["phase"] == "Starting"
    )
    status = life.see(*healthy(), seconds=7)
    assert status["phase"] == "Running"
    assert condition(status, "Running")["message"] == "all 3 pods run"
    assert status["allRunningTime"] == written_time(at(7))
    assert status["replicaStatuses"]["worker"] == {
        "desired": 2,
        "active": 2,
        "ready": 2,
        "succeeded": 0,
        "failed": 0,
    }


def test_a_probe_that_fails_for_a_moment_later_on_changes_nothing() -> None:
    life = ran()

    status = life.see(running(WORKER_0, ready=False), running(WORKER_1), running(LAUNCHER))

    assert status["phase"] == "Running"
    assert condition(status, "Running")["status"] == "True"


def test_a_worker_deleted_before_there_is_a_launcher_is_not_counted() -> None:
    life = Life()
    life.see(running(WORKER_0), running(WORKER_1))

    status = life.see(running(WORKER_0))

    assert status["attempt"] == 1
    assert status["phase"] in ("Pending", "Starting")
    status = life.see(running(WORKER_0), deleting(running(WORKER_1)))
    assert status["attempt"] == 1
    assert status["restarts"] == {"application": 0, "infrastructure": 0}


def test_a_worker_that_fails_before_there_is_a_launcher_is_the_programs_failure() -> None:
    life = Life()
    life.see(running(WORKER_0), running(WORKER_1))

    status = life.see(ended(WORKER_0, 127, "the image has no sshd"), running(WORKER_1))

    assert status["restarts"] == {"application": 1, "infrastructure": 0}
    assert status["failure"]["lastLogLines"] == ["the image has no sshd"]


def test_a_worker_that_ends_well_before_there_is_a_launcher_does_not_leave_the_job_waiting() -> None:
    life = Life(runPolicy={"backoffLimit": 0})

    status = life.see(ended(WORKER_0, 0), running(WORKER_1))

    assert status["phase"] == "Failed"
    assert (
        status["failure"]["message"] == "worker 0 ended with exit code 0 while the other pods still needed it"
    )


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "kind"),
    [
        ([running(WORKER_1), running(LAUNCHER)], "PodLost"),
        ([running(WORKER_0), running(WORKER_1)], "PodLost"),
        ([deleting(running(WORKER_0)), running(WORKER_1), running(LAUNCHER)], "PodLost"),
        ([deleting(ended(WORKER_0, 0)), running(WORKER_1), running(LAUNCHER)], "PodLost"),
        ([deleting(ended(WORKER_0, 137)), running(WORKER_1), running(LAUNCHER)], "PodLost"),
        ([evicted(WORKER_0), running(WORKER_1), running(LAUNCHER)], "Evicted"),
    ],
    ids=["gone", "launcher gone", "told to end", "ended when told", "killed when told", "evicted"],
)
def test_a_pod_taken_away_restarts_the_attempt_and_is_not_counted_against_the_limit(
    pods: list[Manifest], kind: str
) -> None:
    life = ran(runPolicy={"backoffLimit": 0})

    status = life.see(*pods, seconds=20)

    assert status["phase"] == "Restarting"
    assert status["attempt"] == 2
    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    assert status["failure"]["class"] == kind
    assert condition(status, "Running")["status"] == "False"
    assert condition(status, "Running")["lastTransitionTime"] == written_time(at(20))
    assert condition(status, "Restarting")["reason"] == "InfrastructureFailure"
    assert "allRunningTime" not in status
    assert life.decision is not None
    assert (life.decision.prepare, life.decision.pods.make) == (False, frozenset())


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("Terminated", 143),
        ("Terminated", 0),
        ("Shutdown", 137),
        ("NodeShutdown", None),
        ("NodeLost", None),
        ("Preempting", 143),
        ("UnexpectedAdmissionError", None),
        ("OutOfnvidia.com/gpu", None),
    ],
)
@pytest.mark.parametrize("lost", [WORKER_0, LAUNCHER])
def test_a_node_that_shuts_down_or_has_lost_its_gpu_is_no_failure_of_the_program(
    reason: str, end: int | None, lost: str
) -> None:
    life = ran(runPolicy={"backoffLimit": 0})
    taken = scheduled(lost) if end is None else ended(lost, end)
    taken["status"] |= {"phase": "Failed", "reason": reason, "message": "the node goes"}

    status = life.see(taken, *(made for made in healthy() if made["metadata"]["name"] != lost))

    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    assert status["failure"]["message"] == f"pod {lost}: {reason}: the node goes"
    assert life.see(*healthy(2))["phase"] == "Running"


def test_an_evicted_worker_is_the_cause_even_when_its_sshd_ended_with_0_and_the_launcher_failed() -> None:
    life = ran(runPolicy={"backoffLimit": 0})
    lost = ended(WORKER_0, 0)
    lost["status"] |= {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    launcher = ended(LAUNCHER, 255, {"class": "ConnectionLost", "message": "lost worker 0", "exitCode": 255})

    status = life.see(lost, running(WORKER_1), launcher)

    assert status["phase"] == "Restarting"
    assert status["failure"]["class"] == "Evicted"
    assert status["failure"]["message"] == "pod mnist-worker-0: Evicted: low on memory"


def test_an_init_container_that_fails_is_the_jobs_own_failure_and_has_its_limit() -> None:
    made = scheduled(WORKER_0)
    made["status"]["phase"] = "Failed"
    terminated = {"exitCode": 1, "reason": "Error", "finishedAt": written_time(START)}
    made["status"]["initContainerStatuses"] = [{"name": "fetch", "state": {"terminated": terminated}}]
    made["status"]["containerStatuses"] = [
        {"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}
    ]

    status = Life(runPolicy={"backoffLimit": 0}).see(made)

    assert status["phase"] == "Failed"
    assert status["failure"]["message"] == "worker 0 ended with exit code 1 (init container fetch)"


def test_running_is_false_as_soon_as_a_rank_is_gone_also_while_the_cause_is_unclear() -> None:
    life = ran()
    launcher = ended(LAUNCHER, 255, {"class": "ConnectionLost", "message": "lost worker 0"}, seconds=60)

    status = life.see(running(WORKER_0), running(WORKER_1), launcher, seconds=61)

    assert condition(status, "Running")["status"] == "False"
    assert condition(status, "Running")["reason"] == "RankLost"
    assert status["attempt"] == 1
    assert life.decision is not None
    assert life.decision.look_again == NODE_SETTLE_SECONDS - 1
    status = life.see(running(WORKER_0), running(WORKER_1), launcher, seconds=121)
    assert status["attempt"] == 2
    assert status["restarts"] == {"application": 1, "infrastructure": 0}


def test_an_unclear_cause_gives_way_to_the_true_one() -> None:
    life = ran()
    launcher = ended(LAUNCHER, 255, {"class": "ConnectionLost", "message": "lost worker 0"}, seconds=60)
    life.see(running(WORKER_0), running(WORKER_1), launcher, seconds=61)

    status = life.see(running(WORKER_1), launcher, seconds=62)

    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    assert status["failure"]["pod"] == WORKER_0


def test_a_node_whose_clock_is_ahead_does_not_hold_the_job_up() -> None:
    life = ran()
    launcher = ended(LAUNCHER, 255, {"class": "ConnectionLost", "message": "lost"}, seconds=3600)

    assert life.see(running(WORKER_0), running(WORKER_1), launcher, seconds=61)["attempt"] == 2


def test_an_operator_whose_clock_goes_backwards_goes_on() -> None:
    life = ran()

    status = life.see(*healthy(), seconds=-3600)
    assert status["phase"] == "Running"
    status = life.see(running(WORKER_0), running(WORKER_1), ended(LAUNCHER, 3, BROKEN), seconds=-7200)
    assert status["attempt"] == 2
    status = life.see(*healthy(2), seconds=-9000)
    assert status["phase"] == "Running"
    assert life.see(*healthy(2)[:2], ended(LAUNCHER, attempt=2), seconds=-9000)["phase"] == "Succeeded"


# --- attempts -------------------------------------------------------------------------------------


def failed(attempt: int, seconds: float = 0) -> list[Manifest]:
    return [
        running(WORKER_0, attempt=attempt),
        running(WORKER_1, attempt=attempt),
        ended(LAUNCHER, 3, BROKEN, attempt=attempt, seconds=seconds),
    ]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_failing_program_has_as_many_retries_as_the_limit_says(limit: int) -> None:
    life = Life(runPolicy={"backoffLimit": limit})
    for attempt in range(1, limit + 1):
        life.see(*healthy(attempt))
        status = life.see(*failed(attempt))
        assert status["phase"] == "Restarting"
        assert status["attempt"] == attempt + 1
        assert status["failure"]["attempt"] == attempt

    life.see(*healthy(limit + 1))
    status = life.see(*failed(limit + 1), seconds=99)

    assert status["phase"] == "Failed"
    assert status["restarts"] == {"application": limit, "infrastructure": 0}
    assert condition(status, "Failed")["reason"] == "BackoffLimitExceeded"
    assert (
        condition(status, "Failed")["message"]
        == f"attempt {limit + 1}: rank 1 in mnist-launcher-0: rank 1: ValueError: no"
    )
    assert status["completionTime"] == written_time(at(99))
    assert condition(status, "Running")["status"] == "False"


def test_pauses_before_attempts_grow() -> None:
    life = Life(runPolicy={"backoffLimit": 9})
    found = []
    seconds = 0.0
    for attempt in range(1, 9):
        life.see(*failed(attempt), seconds=seconds)
        life.see(seconds=seconds)
        assert life.decision is not None
        found.append(life.decision.look_again or 0.0)
        assert life.decision.prepare == (found[-1] == 0)
        seconds += found[-1]
        life.see(seconds=seconds)
        assert (life.decision.prepare, life.decision.pods.make) == (True, {WORKER_0, WORKER_1})

    assert found == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_pause_is_said_in_a_sentence_that_stays_the_same() -> None:
    life = Life(runPolicy={"backoffLimit": 9})
    life.see(*failed(1))
    life.see(*failed(2))

    first, second = life.see(seconds=1), life.see(seconds=6)

    assert condition(first, "Running")["reason"] == "Backoff"
    assert condition(first, "Running")["message"] == "waits 10 s before the next attempt"
    assert first == second


def test_no_pod_is_made_while_pods_of_the_last_attempt_end() -> None:
    life = ran()
    life.see(*failed(1))

    status = life.see(deleting(running(WORKER_1)), deleting(running(WORKER_0)))

    assert condition(status, "Running")["reason"] == "PodsEnding"
    assert "mnist-worker-0, mnist-worker-1" in condition(status, "Running")["message"]
    assert life.decision is not None
    assert (life.decision.prepare, life.decision.pods.make) == (False, frozenset())


def test_a_job_that_runs_again_is_restarting_no_more_and_keeps_the_last_failure() -> None:
    life = ran()
    life.see(*failed(1), seconds=10)

    assert life.see(scheduled(WORKER_0, attempt=2), seconds=12)["phase"] == "Restarting"
    status = life.see(*healthy(2), seconds=20)

    assert status["phase"] == "Running"
    assert condition(status, "Restarting")["status"] == "False"
    assert status["allRunningTime"] == written_time(at(20))
    assert status["failure"]["attempt"] == 1
    # Also after the job succeeded: nothing says as much of the first attempt.
    assert life.see(*healthy(2)[:2], ended(LAUNCHER, attempt=2))["failure"]["attempt"] == 1


def test_replicas_of_the_attempt_before_are_counted_no_more() -> None:
    life = ran()
    assert life.see(*failed(1))["replicaStatuses"]["launcher"]["failed"] == 1

    status = life.see(*failed(1)[2:], *healthy(2))

    counts = {"desired": 1, "active": 1, "ready": 1, "succeeded": 0, "failed": 0}
    assert status["replicaStatuses"]["launcher"] == counts


def test_transition_times_move_only_when_a_condition_flips() -> None:
    life = Life()
    life.see(seconds=0)
    life.see(waiting(WORKER_0, "ImagePullBackOff", "x"), seconds=5)
    status = life.see(*healthy(), seconds=10)
    assert condition(status, "Running")["lastTransitionTime"] == written_time(at(10))
    status = life.see(*healthy(), seconds=15)
    assert condition(status, "Running")["lastTransitionTime"] == written_time(at(10))
    assert condition(status, "Created")["lastTransitionTime"] == written_time(START)
    status = life.see(*failed(1), seconds=20)
    assert condition(status, "Running")["lastTransitionTime"] == written_time(at(20))
    status = life.see(*failed(2), seconds=30)
    assert condition(status, "Restarting")["lastTransitionTime"] == written_time(at(20))
    assert status["restartTime"] == written_time(at(30))


# --- deadlines ------------------------------------------------------------------------------------


def test_a_deadline_is_looked_at_when_it_comes() -> None:
    life = Life(runPolicy={"activeDeadlineSeconds": 60})
    life.see(*healthy(), seconds=0)

    life.see(*healthy(), seconds=45)

    assert life.decision is not None
    assert life.decision.look_again == 15


def test_a_deadline_that_passes_while_the_job_runs_fails_it() -> None:
    life = ran(runPolicy={"activeDeadlineSeconds": 60})

    status = life.see(*healthy(), seconds=60)

    assert status["phase"] == "Failed"
    assert condition(status, "Failed")["reason"] == "DeadlineExceeded"
    assert condition(status, "Failed")["message"] == (
        "the job was not done 60 s after its start (runPolicy.activeDeadlineSeconds)"
    )
    assert status["failure"]["class"] == "DeadlineExceeded"


def test_a_deadline_that_passes_while_the_job_waits_says_what_it_waited_for() -> None:
    life = Life(runPolicy={"activeDeadlineSeconds": 60})
    obstacle = unschedulable(WORKER_0, "3 Insufficient nvidia.com/gpu.")
    life.see(obstacle)

    status = life.see(obstacle, seconds=61)

    assert condition(status, "Failed")["message"].endswith(
        "; it waited for: no node takes mnist-worker-0: 3 Insufficient nvidia.com/gpu."
    )
    assert status["failure"]["class"] == "Unschedulable"


def test_a_deadline_counts_from_the_first_attempt() -> None:
    life = ran(runPolicy={"activeDeadlineSeconds": 60})
    life.see(*failed(1), seconds=50)

    assert life.see(*healthy(2), seconds=61)["phase"] == "Failed"


def test_a_success_that_comes_with_the_deadline_is_a_success() -> None:
    life = ran(runPolicy={"activeDeadlineSeconds": 60})

    assert life.see(running(WORKER_0), running(WORKER_1), ended(LAUNCHER), seconds=61)["phase"] == "Succeeded"


# --- the end --------------------------------------------------------------------------------------


def test_success_takes_progress_and_artifacts_of_the_termination_message() -> None:
    life = Life(artifacts={"uri": "s3://bucket/jobs"})
    said = {
        "progress": {"step": 10, "totalSteps": 10, "loss": 0.25, "newer": 1},
        "artifacts": {
            "model": "s3://bucket/jobs/ml/mnist/model/",
            "checkpoint": {"step": 10, "uri": "s3://x"},
        },
    }
    life.see(*healthy(), progress=ProgressStatus(step=5))

    status = life.see(running(WORKER_0), running(WORKER_1), ended(LAUNCHER, 0, said), seconds=30)

    assert status["phase"] == "Succeeded"
    assert condition(status, "Succeeded")["status"] == "True"
    assert condition(status, "Succeeded")["message"] == "mnist-launcher-0 ended with exit code 0"
    assert status["completionTime"] == written_time(at(30))
    assert status["progress"] == {"step": 10, "totalSteps": 10, "loss": 0.25}
    assert status["artifacts"]["model"] == "s3://bucket/jobs/ml/mnist/model/"
    assert status["artifacts"]["uri"] == "s3://bucket/jobs/ml/mnist-5b6a1f0e"


@pytest.mark.parametrize(
    ("artifacts", "said", "told"),
    [
        ({"uri": "s3://bucket/jobs"}, {"artifacts": {"uri": "s3://bucket/jobs/ml/x"}}, True),
        (
            {"uri": "s3://bucket/jobs"},
            {"artifacts": {"tensorboard": "s3://bucket/jobs/ml/x/tensorboard"}},
            True,
        ),
        ({"uri": "s3://bucket/jobs"}, {"artifacts": {"model": "s3://bucket/jobs/ml/x/model"}}, False),
        ({"uri": "s3://bucket/jobs"}, {"artifacts": {"checkpoint": {"step": 10, "uri": "s3://x"}}}, False),
        # An image without dtj_trainer, or a message without room for the report.
        ({"uri": "s3://bucket/jobs"}, {"exitCode": 0}, False),
        ({"uri": "s3://bucket/jobs"}, None, False),
        (None, {"artifacts": {"uri": "s3://bucket/jobs/ml/x"}}, False),
    ],
)
def test_a_success_that_left_nothing_in_the_bucket_says_so(
    artifacts: Manifest | None, said: Manifest | None, told: bool
) -> None:
    life = Life(**({"artifacts": artifacts} if artifacts else {}))
    life.see(*healthy())

    status = life.see(running(WORKER_0), running(WORKER_1), ended(LAUNCHER, 0, said), seconds=30)

    assert status["phase"] == "Succeeded"
    assert condition(status, "Succeeded")["message"] == "mnist-launcher-0 ended with exit code 0" + (
        "; the program left neither a checkpoint nor a model below /dtj" if told else ""
    )


def test_a_checkpoint_of_an_earlier_attempt_is_something_that_was_left() -> None:
    life = Life(artifacts={"uri": "s3://bucket/jobs"})
    seen = ArtifactsStatus.model_validate({"checkpoint": {"step": 5}})
    life.see(*healthy(), artifacts=seen)
    said = {"artifacts": {"uri": "s3://bucket/jobs/ml/x"}}

    status = life.see(running(WORKER_0), running(WORKER_1), ended(LAUNCHER, 0, said), seconds=30)

    assert condition(status, "Succeeded")["message"] == "mnist-launcher-0 ended with exit code 0"


def test_success_without_a_message_keeps_what_was_known() -> None:
    life = Life(artifacts={"uri": "s3://bucket/jobs"})
    known = ArtifactsStatus(tensorboard="s3://t")

    status = life.see(*healthy()[:2], ended(LAUNCHER), progress=ProgressStatus(step=5), artifacts=known)

    assert status["progress"] == {"step": 5}
    assert status["artifacts"]["tensorboard"] == "s3://t"


def test_a_sidecar_that_still_runs_does_not_keep_the_job_from_its_end() -> None:
    life = ran()
    launcher = ended(LAUNCHER)
    launcher["status"]["phase"] = "Running"
    launcher["status"]["containerStatuses"].append({"name": "logs", "state": {"running": {}}})

    assert life.see(running(WORKER_0), running(WORKER_1), launcher)["phase"] == "Succeeded"


def test_a_worker_that_ends_well_while_others_train_is_told_as_a_lost_rank() -> None:
    life = ran()

    status = life.see(ended(WORKER_0), running(WORKER_1), running(LAUNCHER))

    assert condition(status, "Running")["reason"] == "RankLost"
    assert condition(status, "Running")["message"] == "2 of 3 pods run"
    assert status["attempt"] == 1


def test_every_fault_of_an_invalid_job_is_in_one_message() -> None:
    faults = [Fault("spec.image", "bad"), Fault("spec.command", "required")]

    status = evaluate(Life().job, None, faults, Observed(), START).status

    assert status.failure is not None
    assert status.failure.failure_class == "ValidationFailed"
    assert status.failure.message == "spec.image: bad; spec.command: required"
    assert status.phase == "Failed"


def test_the_message_of_many_faults_is_cut_and_says_how_many_there_are() -> None:
    faults = [Fault(f"spec.env[{number}].name", "is set by the operator") for number in range(1000)]

    status = evaluate(Life().job, None, faults, Observed(), START).status

    assert status.failure is not None
    message = status.failure.message or ""
    assert 8000 < len(message) <= 8192
    *said, rest = message.split("; ")
    assert said == [str(fault) for fault in faults[: len(said)]]
    assert rest == f"and {1000 - len(said)} more faults"
    failed = condition(status.model_dump(by_alias=True, mode="json"), "Failed")["message"]
    assert 900 < len(failed) <= 1024
    assert failed.endswith(f"; and {1000 - failed.count(';')} more faults")


@pytest.mark.parametrize("more", [0, 1])
def test_the_message_of_one_fault_is_cut_too(more: int) -> None:
    faults = [Fault("spec.image", "x" * 900_000), Fault("spec.command", "required")][: 1 + more]

    status = evaluate(Life().job, None, faults, Observed(), START).status

    assert status.failure is not None
    message = status.failure.message or ""
    assert 8000 < len(message) <= 8192
    assert message.endswith("x…; and 1 more fault" if more else "x…")


def test_a_wrong_edit_of_a_job_that_runs_is_told_cut() -> None:
    faults = [Fault(f"spec.env[{number}].name", "is set by the operator") for number in range(1000)]

    status = evaluate(ran().job, None, faults, Observed(pods=views(*healthy())), at(50)).status

    created = status.condition(ConditionType.CREATED)
    assert created is not None
    assert re.search(r"; and \d+ more faults$", created.message)
    assert len(created.message) <= 1024


@pytest.mark.parametrize("end", [ended(LAUNCHER), ended(LAUNCHER, 3, BROKEN)], ids=["success", "failure"])
def test_a_finished_job_stays_as_it_ended_with_the_pods_that_end_with_it_counted_as_gone(
    end: Manifest,
) -> None:
    life = ran(runPolicy={"backoffLimit": 0})
    first = life.see(running(WORKER_0), running(WORKER_1), end)

    for pods in ([], healthy(), [deleting(running(WORKER_0))], [evicted(WORKER_0)], failed(1)):
        status = life.see(*pods, seconds=5000, refusal=("X", "y"), progress=ProgressStatus(step=1))
        assert status == first
    assert first["replicaStatuses"]["worker"] == {
        "desired": 2,
        "active": 0,
        "ready": 0,
        "succeeded": 0,
        "failed": 0,
    }


@pytest.mark.parametrize("end", [ended(LAUNCHER), ended(LAUNCHER, 3, BROKEN)], ids=["success", "failure"])
def test_a_finished_job_stays_as_it_ended_but_for_the_pods_that_are_left(end: Manifest) -> None:
    life = ran(runPolicy={"backoffLimit": 0, "cleanPodPolicy": "None"})
    first = life.see(running(WORKER_0), running(WORKER_1), end)

    for pods in ([], healthy(), [deleting(running(WORKER_0))], [evicted(WORKER_0)], failed(1)):
        status = life.see(*pods, seconds=5000, refusal=("X", "y"), progress=ProgressStatus(step=1))
        assert status | {"replicaStatuses": {}} == first | {"replicaStatuses": {}}
    assert first["replicaStatuses"]["worker"]["active"] == 2
    assert life.see()["replicaStatuses"]["worker"]["active"] == 0


# --- stored by another version --------------------------------------------------------------------


def test_a_status_of_a_newer_operator_is_read_as_far_as_it_is_known() -> None:
    stored = ran().job.status.model_dump(by_alias=True, mode="json", exclude_none=True)
    newer = stored | {
        "attempt": 3,
        "phase": "Paused",
        "queue": {"position": 3},
        "conditions": [
            *stored["conditions"],
            stored["conditions"][0] | {"type": "Paused"},
            stored["conditions"][0] | {"type": "Restarting", "since": "yesterday"},
        ],
    }

    read = read_status(newer)

    assert read.attempt == 3
    assert read.phase is None
    assert [c.type.value for c in read.conditions] == ["Created", "Running", "Restarting"]
    assert Life(status=newer).see(*healthy(3))["phase"] == "Running"


def test_what_an_earlier_version_stored_is_left_out() -> None:
    stored = ran().job.status.model_dump(by_alias=True, mode="json", exclude_none=True)
    waits = condition(stored, "Running") | {"status": "False", "reason": "GaveWay"}
    earlier = stored | {
        "attempt": 2,
        "phase": "Pending",
        "gaveWay": {"time": "2026-11-21T12:00:00Z", "times": 1},
        "conditions": [stored["conditions"][0], waits],
    }

    assert read_status(earlier).attempt == 2
    status = Life(status=earlier).see(*healthy(2))
    assert (status["phase"], status["attempt"]) == ("Running", 2)
    assert "gaveWay" not in status


@pytest.mark.parametrize(
    "damage", [{"conditions": 5}, {"attempt": "x"}, {"progress": []}, {"failure": {"exitCode": "x"}}]
)
def test_a_damaged_field_costs_no_more_than_itself(damage: Manifest) -> None:
    stored = ran().job.status.model_dump(by_alias=True, mode="json", exclude_none=True)

    read = read_status(stored | damage)

    assert read.start_time == stored["startTime"]
    assert read.restarts.application == 0


# --- whatever happens -----------------------------------------------------------------------------


def states(attempt: int) -> st.SearchStrategy[list[Manifest]]:
    """Every pod of an attempt in any state, or not there."""

    def of(name: str) -> st.SearchStrategy[Manifest | None]:
        seconds = st.integers(-10, 100)
        return st.one_of(
            st.none(),
            st.just(pod(name, attempt=attempt)),
            st.just(scheduled(name, attempt=attempt)),
            st.just(waiting(name, "ImagePullBackOff", "x", attempt=attempt)),
            st.booleans().map(lambda ready: running(name, attempt=attempt, ready=ready)),
            st.builds(
                lambda code, message, when: ended(name, code, message, attempt=attempt, seconds=when),
                st.sampled_from([0, 1, 3, 137, 143, 255]),
                st.sampled_from(["", "text", BROKEN, {"class": "ConnectionLost"}, {"progress": {"step": 1}}]),
                seconds,
            ),
            st.booleans().map(lambda ready: deleting(running(name, attempt=attempt, ready=ready))),
            st.just(deleting(ended(name, 0, attempt=attempt))),
        )

    return st.tuples(*(of(name) for name in ALL)).map(lambda pods: [p for p in pods if p is not None])


SIGHTS = st.lists(
    st.tuples(st.integers(1, 4).flatmap(states), st.integers(0, 60), st.booleans()), min_size=1, max_size=6
)


@settings(max_examples=60)
@given(SIGHTS, st.integers(0, 2), st.none() | st.integers(1, 200), st.none() | st.integers(1, 100))
def test_whatever_is_seen_the_status_is_sound(
    sights: list[tuple[list[Manifest], int, bool]], limit: int, deadline: int | None, start: int | None
) -> None:
    policy = {"backoffLimit": limit, "activeDeadlineSeconds": deadline, "startDeadlineSeconds": start}
    life = Life(runPolicy=policy, artifacts={"uri": "s3://bucket/jobs"})
    now, previous = 0, None

    for pods, passed, refused in sights:
        now += passed
        observed = Observed(pods=views(*pods), refusal=("QuotaExceeded", "no room") if refused else None)
        before, shape = life.job, life.shape
        once = evaluate(before, shape, [], observed, at(now))
        assert evaluate(before, shape, [], observed, at(now)) == once
        status = life.see(*pods, seconds=now, refusal=observed.refusal)

        assert list(schema_faults(STATUS_SCHEMA, status)) == []
        json.dumps(status, allow_nan=False)
        assert 1 <= status["attempt"] == sum(status["restarts"].values()) + 1
        assert status["restarts"]["application"] <= limit
        assert condition(status, "Running")["status"] == (
            "True" if status["phase"] == "Running" else "False"
        ) or (condition(status, "Running")["reason"] == "RankLost")
        assert ("completionTime" in status) == (status["phase"] in ("Succeeded", "Failed"))
        if previous is not None:
            for cause, count in previous["restarts"].items():
                assert status["restarts"][cause] >= count
            if previous["phase"] in ("Succeeded", "Failed"):
                assert status | {"replicaStatuses": {}} == previous | {"replicaStatuses": {}}
        # The same sight again: at most a new attempt has begun, and then nothing moves any more.
        again = [life.see(*pods, seconds=now, refusal=observed.refusal) for _ in range(2)]
        changed = [new for old, new in itertools.pairwise([status, *again]) if new != old]
        assert len(changed) <= 2
        if status["attempt"] == before.status.attempt:
            assert changed == [] or changed[0]["attempt"] > status["attempt"]
        previous = again[-1]


def test_times_are_written_in_utc_whatever_the_operators_zone() -> None:
    there = START.astimezone(timezone(timedelta(hours=5)))

    assert written_time(there) == "2026-11-21T12:00:00Z"


def test_a_lost_connection_to_a_node_that_falls_silent_is_the_nodes_fault() -> None:
    life = ran(runPolicy={"backoffLimit": 0})
    launcher = ended(LAUNCHER, 255, {"class": "ConnectionLost", "message": "lost worker 0"}, seconds=60)
    life.see(running(WORKER_0), running(WORKER_1), launcher, seconds=61)

    status = life.see(running(WORKER_0, ready=False), running(WORKER_1), launcher, seconds=100)

    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    assert status["attempt"] == 2


def test_a_wrong_edit_of_a_job_that_runs_does_not_end_it() -> None:
    life = ran()
    stored = life.job.status
    pods = views(*healthy())

    found = evaluate(life.job, None, [Fault("spec.env", "is wrong")], Observed(pods=pods), at(50))

    assert found.status.phase == stored.phase == Phase.RUNNING
    assert found.status.holds(ConditionType.RUNNING)
    created = found.status.condition(ConditionType.CREATED)
    assert created is not None
    assert (created.reason, created.message) == ("SpecInvalid", "spec.env: is wrong")
    assert [h.reason for h in happenings(stored, found.status)] == ["SpecInvalid"]
    mended = life.see(*healthy(), seconds=60)
    assert condition(mended, "Created")["reason"] == "JobCreated"


def test_what_a_program_reports_never_makes_a_status_that_the_api_server_refuses() -> None:
    progress = ProgressStatus.model_validate(
        {"step": 10**30, "epoch": -1, "totalSteps": "many", "updatedTime": "yesterday", "loss": float("nan")}
    )

    assert progress.model_dump(exclude_none=True) == {}
    assert ProgressStatus(updated_time="2026-11-21T12:00:00.5Z").updated_time == "2026-11-21T12:00:00Z"
