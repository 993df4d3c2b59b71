"""The pods that a decision creates, and the pods that a decision ends.

- created: the first stage, the next one once it is ready, not a name that an old pod still has, nothing once begun
- ended: pods of an earlier attempt, replicas that are not wanted any more, what is left after the end; none twice
- the next attempt: what it counts, which replicas are in it
- an MPIJob: mpi-operator creates and ends its pods; only pods that it has abandoned are ended
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtj.api.job import Manifest
from dtj.status.draft import Draft
from dtj.status.mpijob import END_SECONDS, abandoned, ends_mpijob
from dtj.status.observed import MpiCondition, MpiJob
from dtj.status.restart_policy import next_attempt
from tests.unit.support.pods import (
    ALL,
    LAUNCHER,
    WORKER_0,
    WORKER_1,
    Life,
    at,
    deleting,
    ended,
    healthy,
    pod,
    running,
    views,
)

SERVERS = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 1}, "ps": {"replicas": 1}},
}
CHIEF, SERVER, WORKER = "mnist-chief-0", "mnist-ps-0", "mnist-worker-0"


def decided(life: Life, *pods: Manifest, seconds: float = 0) -> tuple[set[str], set[str]]:
    """Names of the pods to create and to end."""
    life.see(*pods, seconds=seconds)
    assert life.decision is not None
    return {*life.decision.pods.make}, {*life.decision.pods.end}


# --- created ------------------------------------------------------------------------------------------


def test_stages_are_created_one_after_the_other() -> None:
    life = Life()

    assert decided(life) == ({WORKER_0, WORKER_1}, set())
    assert decided(life, pod(WORKER_0)) == ({WORKER_1}, set())
    assert decided(life, pod(WORKER_0), running(WORKER_1)) == (set(), set())
    assert decided(life, running(WORKER_0), running(WORKER_1)) == ({LAUNCHER}, set())


def test_nothing_is_created_once_every_pod_was() -> None:
    life = Life()
    life.see(*healthy())

    life.spec["replicaSpecs"] = {"worker": {"replicas": 3}}
    assert decided(life, *healthy()) == (set(), set()), "what an edit adds comes with the next attempt"


def test_a_pod_of_an_earlier_attempt_keeps_its_name_until_it_has_ended() -> None:
    life = Life(**SERVERS)
    life.see(*map(running, (SERVER, CHIEF, WORKER)))
    lost = deleting(running(WORKER))
    life.see(running(SERVER), running(CHIEF), lost, seconds=10)

    assert decided(life, running(SERVER), running(CHIEF), lost, seconds=11) == (set(), set())
    assert decided(life, running(SERVER), running(CHIEF), seconds=12) == ({WORKER}, set())


# --- ended --------------------------------------------------------------------------------------------


def test_the_pods_of_an_earlier_attempt_are_ended_and_those_that_end_are_not_told_twice() -> None:
    life = Life()
    life.see(*healthy())
    life.see(running(WORKER_0), running(LAUNCHER), seconds=10)
    assert life.job.status.attempt == 2

    assert decided(life, running(WORKER_0), running(LAUNCHER), seconds=11) == (set(), {WORKER_0, LAUNCHER})
    assert decided(life, running(WORKER_0), deleting(running(LAUNCHER)), seconds=12) == (set(), {WORKER_0})
    assert decided(life, seconds=13) == ({WORKER_0, WORKER_1}, set())


def test_a_replica_that_is_not_wanted_any_more_is_ended() -> None:
    life = Life(**SERVERS | {"replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}}})
    every = [*map(running, (SERVER, CHIEF, WORKER, "mnist-worker-1"))]
    life.see(*every)

    life.spec = SERVERS
    life.see(*every)
    assert decided(life, *every) == (set(), {"mnist-worker-1"})


@pytest.mark.parametrize(
    ("policy", "names"),
    [("Running", {WORKER_0, WORKER_1}), ("All", {*ALL}), ("None", set())],
)
def test_what_is_left_of_a_job_that_has_ended_is_ended_by_its_policy(policy: str, names: set[str]) -> None:
    life = Life(runPolicy={"cleanPodPolicy": policy})
    life.see(*healthy())
    left = [running(WORKER_0), running(WORKER_1), ended(LAUNCHER)]

    assert decided(life, *left, seconds=20) == (set(), names)
    assert decided(life, *left, seconds=30) == (set(), names)


# --- the next attempt ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["application", "infrastructure", "evaluator", None])
def test_an_attempt_begins_with_one_restart_more_of_its_cause(cause: str | None) -> None:
    life = Life()
    life.see(*healthy())
    draft = Draft(life.job, at(10))

    next_attempt(draft, life.shape, [], cause)  # type: ignore[arg-type]

    status = draft.status()
    counts = status.restarts.model_dump(exclude_defaults=True)
    assert (status.attempt, counts) == (2, {cause: 1} if cause else {})
    assert (status.all_running_time, status.replica_attempts) == (None, None)


def test_replicas_that_go_on_stay_in_their_attempt_and_are_counted() -> None:
    life = Life(**SERVERS)
    every = [*map(running, (SERVER, CHIEF, WORKER))]
    life.see(*every)
    draft = Draft(life.job, at(10))

    next_attempt(draft, life.shape, views(*every), "application", {WORKER})

    status = draft.status()
    assert (status.attempt, status.replica_attempts) == (2, {"worker-0": 2})
    assert status.all_running_time == life.job.status.all_running_time
    assert {role: count.active for role, count in status.replica_statuses.items()} == {
        "chief": 1,
        "ps": 1,
        "worker": 0,
    }


# --- an MPIJob ----------------------------------------------------------------------------------------

GOING = MpiJob("mnist", 1, None, False, False, True, False, None, None)
SAID = MpiCondition("JobSucceeded", "", None)


@pytest.mark.parametrize(
    ("mpijob", "finished", "policy", "seconds", "mpijob_ends", "pods_end"),
    [
        (GOING, False, "Running", 20, False, set()),
        (replace(GOING, attempt=0), False, "Running", 20, True, set()),
        (replace(GOING, attempt=0, deleting=True), False, "Running", 20, False, set()),
        (None, False, "Running", 20, False, set()),
        (GOING, True, "Running", 20, False, set()),
        (GOING, True, "Running", 20 + END_SECONDS, True, set()),
        (GOING, True, "None", 20 + END_SECONDS, False, set()),
        (GOING, True, "All", 20, True, set()),
        (replace(GOING, completed=True, succeeded=SAID), True, "Running", 20, False, {WORKER_0}),
        (replace(GOING, completed=True, succeeded=SAID), True, "All", 20, True, set()),
        (None, True, "Running", 20, False, {WORKER_0}),
    ],
)
def test_an_mpijob_and_its_pods_are_left_to_mpi_operator_where_it_sees_to_them(
    mpijob: MpiJob | None,
    finished: bool,
    policy: str,
    seconds: float,
    mpijob_ends: bool,
    pods_end: set[str],
) -> None:
    life = Life(runPolicy={"cleanPodPolicy": policy})
    life.see(*healthy())
    left = [running(WORKER_0), ended(LAUNCHER)]
    if finished:
        life.see(*left, running(WORKER_1), seconds=20)
    job, status = life.job, life.job.status

    assert (mpijob is not None and ends_mpijob(job, status, mpijob, at(seconds))) == mpijob_ends
    assert abandoned(job, status, mpijob, views(*left), at(seconds)) == pods_end


def test_pods_whose_mpijob_somebody_has_deleted_are_ended_with_their_attempt() -> None:
    life = Life()
    life.see(*healthy())
    life.see(running(WORKER_0), running(LAUNCHER), seconds=10)
    pods = views(running(WORKER_0), running(WORKER_1, attempt=2))

    assert abandoned(life.job, life.job.status, None, pods, at(11)) == {WORKER_0}
