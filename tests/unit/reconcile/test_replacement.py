"""Whole lives of ParameterServer jobs that lose replicas, in the fake cluster."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from dtj.api.identity import KIND
from dtj.api.job import Manifest
from dtj.api.status import ProgressStatus
from dtj.status.observed import ProgressReport
from tests.unit.status.test_replacement import (
    ALL,
    CHIEF,
    EVALUATOR,
    KILLED,
    PS,
    SPEC,
    STALLED,
    SUCCESS,
    WORKER_0,
    WORKER_1,
)
from tests.unit.support.kubelet import Ending
from tests.unit.support.world import KEY, World


async def test_an_operator_that_dies_between_a_loss_and_what_follows_counts_once() -> None:
    there = world(chief_steps=1000)
    await there.until(lambda: there.phase == "Running")
    there.cluster.end_pod(there.cluster.pod(WORKER_0))
    await there.until(lambda: there.status["restarts"]["infrastructure"] == 1)
    await there.until(lambda: there.phase == "Running")
    chief = there.cluster.pod(CHIEF)["metadata"]["uid"]
    there.kubelet.program = lambda pod, ran: (
        (69, json.dumps(STALLED)) if pod["metadata"]["uid"] == chief else None
    )
    there.start_operator()

    await there.until(lambda: there.status["attempt"] == 3 and there.phase == "Running")

    assert there.status["restarts"] == {"application": 0, "infrastructure": 1}
    assert there.status["replicaAttempts"] == {"chief-0": 3, "ps-0": 3, "worker-0": 2}


def world(chief_steps: int = 12, **spec: Any) -> World:
    made = World(**SPEC | spec)

    def program(pod: Manifest, ran: int) -> Ending | None:
        if pod["metadata"]["name"] == CHIEF and ran >= chief_steps:
            return 0, json.dumps(SUCCESS)
        return None

    made.kubelet.program = program
    return made


def kill(world: World, name: str) -> None:
    """Kill a replica's program once, as of now."""
    others = world.kubelet.program
    uid = world.cluster.pod(name)["metadata"]["uid"]
    world.kubelet.program = lambda pod, ran: (
        (137, json.dumps(KILLED)) if pod["metadata"]["uid"] == uid else others(pod, ran)
    )


def uids(world: World) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.cluster.of_kind("Pod")}


@pytest.mark.parametrize(
    ("victim", "replaced"),
    [(WORKER_0, {WORKER_0}), (PS, {PS, CHIEF}), (CHIEF, {PS, CHIEF}), (EVALUATOR, {EVALUATOR})],
)
async def test_a_killed_replica_comes_back_and_the_job_succeeds(victim: str, replaced: set[str]) -> None:
    there = world(chief_steps=30)
    await there.until(lambda: there.phase == "Running")
    before = uids(there)
    kill(there, victim)
    await there.until(lambda: there.status["attempt"] == 2)
    await there.until(
        lambda: (
            there.condition("Restarting").get("status") != "True"
            and set(uids(there)) == set(ALL)
            and uids(there)[victim] != before[victim]
        )
    )
    after = uids(there)

    assert {name for name in before if before[name] != after[name]} == replaced
    there.progress.reports[KEY] = {EVALUATOR: ProgressReport(progress=ProgressStatus(step=300))}
    await there.until(lambda: there.phase == "Succeeded")
    expected = {"application": 0, "infrastructure": 0, "evaluator": 1}
    if victim != EVALUATOR:
        expected = {"application": 1, "infrastructure": 0}
    assert there.status["restarts"] == expected
    assert {"JobRestarting", "EvaluatorRestarting"} & {*there.events()}
    await there.rest()
    assert there.pod_names() == [CHIEF]


async def test_servers_end_with_the_chief_while_the_evaluator_looks_at_the_last_checkpoint() -> None:
    there = world()
    await there.until(lambda: there.condition("Running").get("reason") == "Evaluating")
    await there.until(lambda: there.pod_names() == [CHIEF, EVALUATOR], 10)
    assert there.progress.followed[KEY].keys() == {EVALUATOR}

    there.progress.reports[KEY] = {EVALUATOR: ProgressReport(progress=ProgressStatus(step=300, accuracy=0.9))}
    await there.until(lambda: there.phase == "Succeeded", 10)

    assert there.status["progress"]["accuracy"] == 0.9
    await there.rest()
    assert there.pod_names() == [CHIEF]


async def test_an_evaluator_that_is_deleted_after_the_training_is_made_again_and_nothing_else_is() -> None:
    there = world()
    await there.until(lambda: there.condition("Running").get("reason") == "Evaluating")
    await there.until(lambda: there.pod_names() == [CHIEF, EVALUATOR], 10)
    before = uids(there)[EVALUATOR]
    there.cluster.end_pod(there.cluster.pod(EVALUATOR))
    await there.until(lambda: uids(there).get(EVALUATOR, before) != before)
    assert there.pod_names() == [CHIEF, EVALUATOR]

    there.progress.reports[KEY] = {EVALUATOR: ProgressReport(progress=ProgressStatus(step=300, accuracy=0.9))}
    await there.until(lambda: there.phase == "Succeeded", 10)

    assert there.status["progress"]["accuracy"] == 0.9
    assert there.status["restarts"] == {"application": 0, "infrastructure": 0, "evaluator": 1}
    await there.rest()
    assert there.pod_names() == [CHIEF]


async def test_a_chief_whose_sidecar_still_runs_is_not_taken_for_lost() -> None:
    there = world()

    def with_sidecar() -> None:
        if there.cluster.objects.get(("Pod", "ml", CHIEF), {}).get("status", {}).get("phase") == "Succeeded":
            there.cluster.change(("Pod", "ml", CHIEF), lambda pod: pod["status"].update(phase="Running"))

    await there.until(lambda: with_sidecar() or there.condition("Running").get("reason") == "Evaluating")
    for _ in range(20):
        with_sidecar()
        await there.step()

    assert there.status["attempt"] == 1
    assert there.pod_names() == [CHIEF, EVALUATOR]


async def test_progress_is_asked_while_a_worker_starts_again() -> None:
    there = world(chief_steps=60)
    await there.until(lambda: there.phase == "Running")
    kill(there, WORKER_0)
    await there.until(lambda: there.phase == "Restarting")
    await there.step()

    assert there.progress.followed[KEY].keys() == {CHIEF, EVALUATOR}


async def test_policy_none_leaves_the_servers() -> None:
    there = world(runPolicy={"cleanPodPolicy": "None"})
    await there.until(lambda: there.condition("Running").get("reason") == "Evaluating")
    there.progress.reports[KEY] = {EVALUATOR: ProgressReport(progress=ProgressStatus(step=300))}
    await there.until(lambda: there.phase == "Succeeded")
    await there.rest()

    assert there.pod_names() == sorted(ALL)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_operator_that_dies_at_any_call_of_a_replacement_ends_in_the_same_state(when: Any) -> None:
    for call in range(1, 14):
        there = world(
            chief_steps=20, replicaSpecs={role: SPEC["replicaSpecs"][role] for role in ("worker", "ps")}
        )
        await there.until(lambda there=there: there.phase == "Running")
        kill(there, PS)
        there.cluster.die_at = call
        there.cluster.die_when = when
        await there.until(lambda there=there: there.phase == "Succeeded")
        assert there.deaths == 1, call

        assert there.status["restarts"] == {"application": 1, "infrastructure": 0}, call
        assert there.status["replicaAttempts"] == {"chief-0": 2, "ps-0": 2}, call


@pytest.mark.bound(
    "operator",
    "A node whose device plugin is broken",
    "Pods made again for one replica",
    "Growing pauses from the second loss on",
)
async def test_a_replica_that_kubelets_refuse_again_and_again_has_growing_pauses() -> None:
    """Broken device plugin: UnexpectedAdmissionError, at once, for each pod of the replica."""
    spec = {"replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}}}
    world = World(strategy="ParameterServer", **spec)
    world.kubelet.program = lambda pod, ran: None
    await world.until(lambda: world.phase == "Running")
    made, victim = len(world.cluster.created_pods), ("Pod", "ml", "mnist-worker-1")

    def refuse(pod: Manifest) -> None:
        pod["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}

    since = world.cluster.now
    while world.cluster.now - since < timedelta(seconds=600):
        pod = world.cluster.objects.get(victim)
        if pod and pod["status"].get("phase") != "Failed" and "deletionTimestamp" not in pod["metadata"]:
            world.cluster.change(victim, refuse)
        await world.step()
    assert 4 <= len(world.cluster.created_pods) - made <= 9
    assert world.phase == "Restarting"
    assert "mnist-worker-0" in world.pod_names(), "the others go on"


async def test_a_worker_that_is_wanted_again_while_its_removed_pod_ends_is_no_loss() -> None:
    there = World(**SPEC | {"replicaSpecs": {"worker": {"replicas": 2}, "ps": {}}})
    there.kubelet.program = lambda pod, ran: None
    await there.until(lambda: there.phase == "Running")

    def scale(workers: int) -> None:
        there.cluster.change(
            (KIND, *KEY), lambda job: job["spec"]["replicaSpecs"]["worker"].update(replicas=workers)
        )
        there.view.deliver()

    scale(1)
    await there.reconciler.reconcile(KEY)
    assert "deletionTimestamp" in there.cluster.pod(WORKER_1)["metadata"]
    there.start_operator()
    scale(2)
    await there.until(lambda: there.status.get("replicaAttempts") == {"worker-1": 2})
    await there.until(lambda: there.phase == "Running")

    assert there.cluster.pod(WORKER_1)["status"]["phase"] == "Running"
    assert there.status["restarts"] == {"application": 0, "infrastructure": 0}
    assert "failure" not in there.status
