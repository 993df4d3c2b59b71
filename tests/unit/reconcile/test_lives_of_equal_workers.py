"""Whole lives of jobs whose every worker decides (TorchDistributed).

* ends at different times, cleanPodPolicy, TTL, events
* an operator that dies at any request
* scaling while suspended, deadlines
* jobs whose spec has become unreadable
"""

from __future__ import annotations

from typing import Any, Literal

import pytest

from dtj.api.identity import KIND, LABEL_ATTEMPT, LABEL_INDEX
from dtj.api.job import Manifest
from dtj.api.shape import stored_shape
from dtj.plan.job import plan_job
from tests.unit.support.jobs import job
from tests.unit.support.kubelet import Ending
from tests.unit.support.programs import endless
from tests.unit.support.world import KEY, World

SPEC: dict[str, Any] = {"strategy": "TorchDistributed", "replicaSpecs": {"worker": {"replicas": 3}}}
JOB = (KIND, *KEY)
WORKERS = [f"mnist-worker-{index}" for index in range(3)]
NONE = {"application": 0, "infrastructure": 0}


def in_turn(pod: Manifest, ran: int) -> Ending | None:
    """Worker 0 ends last, as it uploads."""
    return (0, "") if ran > 12 - 4 * int(pod["metadata"]["labels"][LABEL_INDEX]) else None


@pytest.mark.parametrize(("policy", "kept"), [("Running", WORKERS), ("None", WORKERS), ("All", [])])
async def test_workers_that_ended_before_the_others_stay_until_the_end(policy: str, kept: list[str]) -> None:
    world = World(**SPEC, runPolicy={"cleanPodPolicy": policy})
    world.kubelet.program = in_turn
    await world.until(lambda: world.phase == "Running")
    await world.until(lambda: world.status["replicaStatuses"]["worker"]["succeeded"] == 2)
    assert world.phase == "Running"
    assert world.pod_names() == WORKERS

    await world.until(lambda: world.phase == "Succeeded")
    await world.rest()

    assert world.pod_names() == kept
    assert world.events() == ["JobRunning", "JobSucceeded"]
    assert world.status["restarts"] == NONE
    assert world.status["replicaStatuses"]["worker"]["succeeded"] == 3


async def test_the_ttl_counts_from_the_end_of_the_last_worker() -> None:
    world = World(**SPEC, runPolicy={"ttlSecondsAfterFinished": 5})
    world.kubelet.program = in_turn
    await world.until(lambda: world.phase == "Succeeded")
    ended = world.cluster.now

    await world.until(lambda: JOB not in world.cluster.objects)

    assert (world.cluster.now - ended).total_seconds() >= 5


async def test_a_failure_ends_those_that_run_and_all_start_again_with_their_own_environment() -> None:
    world = World(**SPEC)

    def program(pod: Manifest, ran: int) -> Ending | None:
        labels = pod["metadata"]["labels"]
        if labels[LABEL_ATTEMPT] == "1":
            return (
                (1, '{"class": "ApplicationError", "message": "no"}') if labels[LABEL_INDEX] == "2" else None
            )
        return (0, "") if ran > 2 else None

    world.kubelet.program = program
    await world.rest()

    assert (world.phase, world.status["attempt"]) == ("Succeeded", 2)
    assert world.status["restarts"] == NONE | {"application": 1}
    created = world.cluster.created_pods
    assert sorted(created) == sorted((name, attempt) for name in WORKERS for attempt in ("1", "2"))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", range(1, 12))
async def test_an_operator_that_dies_at_any_request_changes_nothing(
    call: int, when: Literal["before", "after"]
) -> None:
    world = World(**SPEC)
    world.kubelet.program = in_turn
    world.cluster.die_at, world.cluster.die_when = call, when

    await world.until(lambda: world.phase == "Succeeded")

    assert (world.status["attempt"], world.status["restarts"]) == (1, NONE)


@pytest.mark.parametrize("replicas", [1, 2, 5])
async def test_a_job_scaled_while_suspended_goes_on_with_as_many_workers(replicas: int) -> None:
    world = World(**SPEC)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    world.cluster.change(JOB, lambda job: job["spec"].update(runPolicy={"suspend": True}))
    await world.until(lambda: world.phase == "Suspended")

    def scale(job: Manifest) -> None:
        job["spec"] |= {"runPolicy": {"suspend": False}, "replicaSpecs": {"worker": {"replicas": replicas}}}

    world.cluster.change(JOB, scale)
    await world.until(lambda: world.phase == "Running")
    world.kubelet.program = lambda pod, ran: (0, "")
    await world.until(lambda: world.phase == "Succeeded")

    assert world.status["restarts"] == NONE
    assert len(world.pod_names()) == replicas
    ended = f"all {replicas} workers" if replicas > 1 else WORKERS[0]
    assert world.condition("Succeeded")["message"] == f"{ended} ended with exit code 0"


async def test_a_job_of_which_one_worker_goes_on_too_long_misses_its_deadline() -> None:
    world = World(**SPEC, runPolicy={"activeDeadlineSeconds": 60})
    world.kubelet.program = lambda pod, ran: None if pod["metadata"]["name"] == WORKERS[0] else (0, "")

    await world.rest()

    assert (world.phase, world.condition("Failed")["reason"]) == ("Failed", "DeadlineExceeded")
    assert world.pod_names() == WORKERS[1:]


async def test_a_worker_that_never_starts_misses_the_deadline_of_the_start() -> None:
    world = World(**SPEC, runPolicy={"startDeadlineSeconds": 30})
    world.kubelet.program = lambda pod, ran: (0, "")
    world.kubelet.hold = {WORKERS[1]}

    await world.until(lambda: world.phase == "Failed")

    assert world.condition("Failed")["reason"] == "StartDeadlineExceeded"
    assert WORKERS[1] in world.condition("Failed")["message"]


# --- specs that can't be read ---------------------------------------------------------------------------


def test_the_stored_status_expects_the_same_of_the_pods_as_the_plan() -> None:
    made = job(**SPEC)
    plan = plan_job(made)
    counts = {"worker": {"desired": 3}}

    stored = stored_shape(job(**SPEC, status={"attempt": 1, "replicaStatuses": counts}))

    assert stored is not None
    planned = plan.shape
    for field in ("decides", "reporter", "restarts_with", "needed", "created_last", "attempts"):
        assert getattr(stored, field) == getattr(planned, field), field


async def test_an_unreadable_job_still_needs_all_of_its_workers() -> None:
    world = World(**SPEC)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    world.cluster.change(JOB, lambda job: job["spec"].update(newField=1))
    await world.step()
    assert world.condition("Created")["reason"] == "SpecInvalid"
    world.kubelet.program = in_turn

    await world.until(lambda: world.status["replicaStatuses"]["worker"]["succeeded"] == 2)
    assert world.phase == "Running"
    await world.until(lambda: world.phase == "Succeeded")

    assert world.status["restarts"] == NONE
