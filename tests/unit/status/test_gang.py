"""The status of a job in a queue, and the effects of waiting, admission and eviction.

* waiting for a quota, a group or a scheduler
* pods that Kueue gates one by one
* evictions, preemptions and deactivated Workloads
* a group that is never complete
"""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.job import Fault, Manifest
from dtj.api.shape import stored_shape
from dtj.api.status import ConditionType
from dtj.status.evaluate import evaluate
from dtj.status.observed import Observed
from dtj.status.pods import view_pod
from tests.unit.support.pods import (
    ALL,
    LAUNCHER,
    WORKER_0,
    WORKER_1,
    Life,
    at,
    condition,
    ended,
    healthy,
    pod,
    running,
    scheduled,
    unschedulable,
    views,
)


def policy(gang: str, queue: str | None = None, **more: Any) -> Manifest:
    given = {"gang": gang} | ({"queue": queue} if queue else {})
    return {"runPolicy": {"schedulingPolicy": given, **more}}


def gated(
    name: str, *, attempt: int = 1, queue: str | None = "default", gate: str = "kueue.x-k8s.io/admission"
) -> Manifest:
    """As the API server shows a pod whose gate nobody has opened; by default one that Kueue's webhook has queued."""
    told = "Scheduling is blocked due to non-empty scheduling gates"
    shown = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": told}
    made = pod(name, attempt=attempt, conditions=[shown])
    made["spec"]["schedulingGates"] = [{"name": gate}]
    made["metadata"]["labels"] |= {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    return made


PREEMPTED = "Preempted to accommodate a workload (UID: 1) due to prioritization in the ClusterQueue"


def stopped_by_kueue(
    made: Manifest, reason: str = "WorkloadEvictedDueToPreempted", message: str = PREEMPTED
) -> Manifest:
    """As Kueue leaves a pod of a group that it evicts: it writes the condition, then deletes the pod."""
    made["status"].setdefault("conditions", []).append(
        {"type": "TerminationTarget", "status": "True", "reason": reason, "message": message}
    )
    return made


GATED = [gated(name) for name in ALL]


# --- in the queue ---------------------------------------------------------------------------------------


def test_a_job_in_a_queue_says_which_quota_it_waits_for() -> None:
    life = Life(**policy("Kueue", "research"))

    status = life.see(*GATED)

    waits = condition(status, "Running")
    assert (status["phase"], waits["status"], waits["reason"]) == ("Pending", "False", "Queued")
    workload = life.plan.pods[0]["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"]
    assert waits["message"] == (
        "waits for quota in queue research: Kueue holds the pods of attempt 1 until it admits all of them; "
        "if this lasts, the queue may not exist, or its quota may be smaller than the job: "
        f"kubectl describe workload {workload} --namespace ml"
    )


@pytest.mark.parametrize("deadline", ["startDeadlineSeconds", "activeDeadlineSeconds"])
def test_time_in_the_queue_is_not_counted(deadline: str) -> None:
    life = Life(**policy("Kueue", "research", **{deadline: 60}))
    life.see()
    assert "startTime" not in life.see(*GATED, seconds=10)
    assert life.see(*GATED, seconds=5000)["phase"] == "Pending"

    placed = [scheduled(name) for name in ALL]
    admitted = life.see(*placed, seconds=5010)
    assert (admitted["phase"], admitted["startTime"]) == ("Starting", "2026-11-21T13:23:30Z")
    assert life.see(*placed, seconds=5069)["phase"] == "Starting"
    assert life.see(*placed, seconds=5071)["phase"] == "Failed"


def test_a_queued_job_whose_spec_became_invalid_still_waits_in_its_queue() -> None:
    life = Life(**policy("Kueue", "research", activeDeadlineSeconds=60))
    life.see(*GATED)

    unknown, seen = Fault("spec.newField", "unknown field"), Observed(pods=views(*GATED))
    status = evaluate(life.job, stored_shape(life.job), [unknown], seen, at(5000)).status

    running = status.condition(ConditionType.RUNNING)
    assert running is not None
    assert (status.phase, running.reason) == ("Pending", "Queued")
    assert running.message.endswith("kubectl get workloads --namespace ml")


def test_a_queued_job_needs_no_look_and_no_write_while_nothing_happens() -> None:
    life = Life(**policy("Kueue", "research", startDeadlineSeconds=60, activeDeadlineSeconds=600))
    first = life.see(*GATED, seconds=1)

    assert life.see(*GATED, seconds=1000) == first
    assert life.decision is not None
    assert life.decision.look_again is None


@pytest.mark.parametrize(("gang", "queue"), [("Coscheduling", None), ("Volcano", "research")])
def test_a_group_that_has_no_place_says_so(gang: str, queue: str | None) -> None:
    life = Life(**policy(gang, queue))

    status = life.see(unschedulable(WORKER_0, "0/4 nodes are available"), pod(WORKER_1))

    waits = condition(status, "Running")
    assert (status["phase"], waits["reason"]) == ("Pending", "Queued")
    assert waits["message"].startswith(f"waits until {gang} places its 2 pods together")
    assert waits["message"].endswith("no node takes mnist-worker-0: 0/4 nodes are available")
    assert (", queue research" in waits["message"]) == (queue is not None)


def test_a_group_without_its_scheduler_waits_in_words_too() -> None:
    status = Life(**policy("Volcano")).see(pod(WORKER_0), pod(WORKER_1))
    assert condition(status, "Running")["message"] == "waits until Volcano places its 2 pods together"


def test_waiting_for_a_place_counts_where_no_queue_tells_when_it_ends() -> None:
    life = Life(**policy("Volcano", None, startDeadlineSeconds=60))
    life.see(pod(WORKER_0), pod(WORKER_1))

    status = life.see(pod(WORKER_0), pod(WORKER_1), seconds=61)

    assert (status["phase"], status["failure"]["class"]) == ("Failed", "StartDeadlineExceeded")
    assert "waits until Volcano places" in status["failure"]["message"]


def test_placed_pods_wait_for_other_things_by_their_own_names() -> None:
    broken = scheduled(WORKER_0)
    broken["status"]["containerStatuses"] = [
        {"name": "trainer", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    ]
    for gang, queue in (("Kueue", "research"), ("Volcano", None)):
        life = Life(**policy(gang, queue))
        status = life.see(broken, running(WORKER_1))
        assert condition(status, "Running")["reason"] == "ImagePull"


def test_a_launcher_outside_the_group_waits_as_any_pod() -> None:
    status = Life(**policy("Volcano")).see(
        running(WORKER_0), running(WORKER_1), unschedulable(LAUNCHER, "too little cpu")
    )
    assert condition(status, "Running")["reason"] == "Unschedulable"


# --- queued by Kueue although the job asks for no gang: Kueue gates the pods one by one --------------------


def test_pods_that_are_gated_one_by_one_name_their_queue_and_what_admits_all_of_them() -> None:
    life = Life()

    status = life.see(gated(WORKER_0), gated(WORKER_1))

    waits = condition(status, "Running")
    assert (status["phase"], waits["reason"]) == ("Pending", "Queued")
    assert waits["message"].startswith(
        "waits for quota in queue default: Kueue admits the pods of this job one by"
    )
    assert "runPolicy.schedulingPolicy.gang: Kueue" in waits["message"]
    assert waits["message"].endswith("kubectl get workloads --namespace ml")


def test_a_gate_of_kueue_on_pods_without_a_queue_is_told_as_such() -> None:
    status = Life().see(gated(WORKER_0, queue=None), gated(WORKER_1, queue=None))
    assert "Kueue admits the pods" in condition(status, "Running")["message"]
    assert "a queue that its pods do not name" in condition(status, "Running")["message"]


def test_another_gate_is_named() -> None:
    status = Life().see(gated(WORKER_0, queue=None, gate="example.com/data"), running(WORKER_1))
    waits = condition(status, "Running")
    assert (waits["reason"], waits["message"]) == (
        "Queued",
        "the scheduling gate example.com/data holds mnist-worker-0",
    )


@pytest.mark.parametrize("deadline", ["startDeadlineSeconds", "activeDeadlineSeconds"])
def test_time_counts_from_the_first_pod_that_is_admitted_alone(deadline: str) -> None:
    life = Life(runPolicy={deadline: 60})
    assert "startTime" not in life.see(gated(WORKER_0), gated(WORKER_1), seconds=10)
    assert life.see(gated(WORKER_0), gated(WORKER_1), seconds=5000)["phase"] == "Pending"

    status = life.see(running(WORKER_0), gated(WORKER_1), seconds=5010)
    assert status["startTime"] == "2026-11-21T13:23:30Z"
    assert condition(status, "Running")["reason"] == "Queued"
    status = life.see(running(WORKER_0), gated(WORKER_1), seconds=5071)
    assert status["phase"] == "Failed", "a job that holds a part of what it needs ends"
    assert "waits for quota in queue default" in status["failure"]["message"]


def test_a_replica_that_starts_again_alone_in_a_queue_takes_the_job_no_time_off() -> None:
    life = Life(**PS, runPolicy={"activeDeadlineSeconds": 600})
    started = life.see(*map(running, PS_ALL))["startTime"]
    life.see(running(PS_ALL[0]), ended(WORKER_1, 3, seconds=10), *map(running, PS_ALL[2:]), seconds=20)

    status = life.see(running(PS_ALL[0]), gated(WORKER_1, attempt=2), *map(running, PS_ALL[2:]), seconds=100)

    assert status["startTime"] == started


def test_what_else_keeps_pods_from_running_is_told_before_a_gate() -> None:
    status = Life().see(gated(WORKER_0), unschedulable(WORKER_1, "no GPU"))
    assert condition(status, "Running")["reason"] == "Unschedulable"


# --- evicted, preempted -----------------------------------------------------------------------------------


def test_what_kueue_evicts_is_infrastructure_and_says_why() -> None:
    life = Life(**policy("Kueue", "research", backoffLimit=0))
    life.see(*healthy())

    status = life.see(*[stopped_by_kueue(made) for made in healthy()], seconds=100)

    assert (status["phase"], status["attempt"]) == ("Restarting", 2)
    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    assert (
        "WorkloadEvictedDueToPreempted: Preempted to accommodate a workload" in status["failure"]["message"]
    )
    assert "nodeFailures" not in status


def test_a_node_is_not_blamed_for_what_kueue_evicts_before_the_pod_is_told_to_end() -> None:
    life = Life()
    life.see(*healthy())
    pods = [stopped_by_kueue(running(WORKER_0)), running(WORKER_1), running(LAUNCHER)]
    assert "nodeFailures" not in life.see(*pods, seconds=100)


DEACTIVATED = ("WorkloadEvictedDueToDeactivated", "The workload is deactivated")
BY_KUEUE = (
    "WorkloadEvictedDueToDeactivatedDueToRequeuingLimitExceeded",
    "The workload is deactivated due to exceeding the maximum number of re-queuing retries",
)


@pytest.mark.parametrize("words", [DEACTIVATED, BY_KUEUE], ids=["by-an-administrator", "by-kueue"])
@pytest.mark.parametrize("gang", ["Kueue", "None"])
def test_a_deactivated_workload_suspends_the_job(gang: str, words: tuple[str, str]) -> None:
    life = Life(**policy(gang, "research" if gang == "Kueue" else None))
    life.see(*healthy())
    stopped = [stopped_by_kueue(running(WORKER_0), *words), running(WORKER_1), running(LAUNCHER)]

    status = life.see(*stopped, seconds=100)

    ends = condition(status, "Running")
    assert (status["phase"], status["attempt"], ends["reason"]) == ("Running", 1, "WorkloadDeactivated")
    assert words[1] in ends["message"]
    assert life.decision is not None
    assert life.decision.pods.end == ({LAUNCHER, WORKER_0, WORKER_1} if gang == "Kueue" else {LAUNCHER})
    status = life.see(seconds=110)
    assert (status["phase"], status["attempt"], status["failure"]["class"]) == ("Suspended", 2, "PodLost")
    assert condition(status, "Suspended")["reason"] == "WorkloadDeactivated"
    assert life.see(seconds=10_000) == status, "nothing but the user lets it go on"
    assert life.decision.look_again is None


def test_a_job_that_is_suspended_while_its_deactivated_pods_end_goes_on_when_it_is_resumed() -> None:
    life = Life(**policy("Kueue", "research"))
    life.see(*healthy())
    stopped = [stopped_by_kueue(made, *DEACTIVATED) for made in healthy()]
    life.see(*stopped, seconds=100)
    for suspend in (True, False):
        life.spec["runPolicy"] |= {"suspend": suspend}
        life.see(*stopped, seconds=101)  # what is stored is read with the spec of then
        assert condition(life.see(*stopped, seconds=102), "Running")["reason"] == "Suspending"

    status = life.see(seconds=110)

    assert condition(status, "Suspended")["reason"] == "JobSuspended"
    assert condition(life.see(seconds=111), "Suspended")["status"] == "False"


def test_an_evicted_job_waits_in_the_queue_anew_without_its_time_running() -> None:
    life = Life(**policy("Kueue", "research", activeDeadlineSeconds=600, startDeadlineSeconds=60))
    life.see(*healthy())
    life.see(*[stopped_by_kueue(made) for made in healthy()], seconds=100)

    again = [gated(name, attempt=2) for name in ALL]
    waits = life.see(*again, seconds=9000)
    assert (waits["phase"], condition(waits, "Running")["reason"]) == ("Restarting", "Queued")
    assert life.see(*healthy(2), seconds=9100)["phase"] == "Running"
    assert life.see(*healthy(2), seconds=9600)["phase"] == "Running"


def test_a_program_that_fails_is_still_at_fault() -> None:
    life = Life(**policy("Kueue", "research"))
    life.see(*healthy())
    status = life.see(running(WORKER_0), running(WORKER_1), ended(LAUNCHER, 3), seconds=100)
    status = life.see(running(WORKER_0), running(WORKER_1), ended(LAUNCHER, 3), seconds=200)
    assert status["restarts"] == {"application": 1, "infrastructure": 0}


# --- one group from the start -------------------------------------------------------------------------------


PS_ROLES = {"worker": {"replicas": 2}, "ps": {"replicas": 1}}
PS = {"strategy": "ParameterServer", "replicaSpecs": PS_ROLES}
PS_ALL = (WORKER_0, WORKER_1, "mnist-ps-0", "mnist-chief-0")


@pytest.mark.parametrize(("spec", "names"), [({}, ALL), (PS, PS_ALL)], ids=["horovod", "parameter-server"])
def test_a_member_that_goes_before_all_ran_ends_the_group(spec: Manifest, names: tuple[str, ...]) -> None:
    life = Life(**policy("Kueue", "research") | spec)
    life.see(*[gated(name) for name in names])

    status = life.see(*[gated(name) for name in names[1:]], seconds=5)

    assert status["attempt"] == 2
    assert set(life.plan.shape.attempts.values()) == {2}


@pytest.mark.parametrize(("spec", "names"), [({}, ALL), (PS, PS_ALL)], ids=["horovod", "parameter-server"])
def test_a_member_told_to_end_while_it_starts_ends_the_group(spec: Manifest, names: tuple[str, ...]) -> None:
    life = Life(**policy("Kueue", "research") | spec)
    starting = [scheduled(name) for name in names]
    life.see(*starting)
    told = scheduled(names[0])
    told["metadata"] |= {"deletionTimestamp": "2026-11-21T12:00:35Z", "deletionGracePeriodSeconds": 30}

    assert life.see(told, *starting[1:], seconds=5)["attempt"] == 2
    assert set(life.plan.shape.attempts.values()) == {2}


def test_a_part_of_the_group_is_never_taken_for_the_whole() -> None:
    life = Life(**policy("Kueue", "research"))
    status = life.see(running(WORKER_0), running(LAUNCHER))
    assert "allRunningTime" not in status


def test_kueues_condition_is_a_disruption_before_the_pod_is_deleted() -> None:
    view = view_pod(stopped_by_kueue(running(WORKER_0)))
    assert view.disrupted
    assert view.reason == "WorkloadEvictedDueToPreempted"
