"""A success that was seen is final: the pods of completed replicas may go before the job ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.api.identity import KIND, LABEL_INDEX, LABEL_ROLE
from dtj.api.job import Manifest
from dtj.status.completed import MOST_REPLICAS, indexes_in, indexes_text
from tests.unit.support.kubelet import Ending
from tests.unit.support.world import KEY, World


class Torch(World):
    """Three workers: those in `done` end at once, the others train on."""

    def __init__(self, strategy: str = "TorchDistributed", **spec: Any) -> None:
        roles: Any = {"worker": {"replicas": 3}}
        if strategy == "ParameterServer":
            # Workers alone, under MultiWorkerMirroredStrategy, and beside them an evaluator.
            roles |= {"chief": {"replicas": 0}, "evaluator": {}}
        super().__init__(**{"strategy": strategy, "replicaSpecs": roles} | spec)
        self.done: set[int] = set()
        self.kubelet.program = self.program

    def program(self, pod: Manifest, ran: int) -> Ending | None:
        labels = pod["metadata"]["labels"]
        if labels[LABEL_ROLE] == "evaluator":
            return None if 0 not in self.done else (0, "")
        return (0, "") if int(labels[LABEL_INDEX]) in self.done and ran >= 2 else None


def _remove(world: World, name: str) -> None:
    world.cluster.remove(("Pod", "ml", name))


def _evict(world: World, name: str) -> None:
    """The Eviction API marks completed pods too, and then deletes them."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    world.cluster.change(("Pod", "ml", name), lambda pod: pod["status"].update(conditions=[condition]))


@pytest.mark.parametrize("goes", [_remove, _evict])
@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("strategy", ["TorchDistributed", "ParameterServer"])
async def test_the_pod_of_a_completed_worker_goes(
    goes: Callable[[World, str], None], anew: bool, strategy: str
) -> None:
    world = Torch(strategy)
    await world.until(lambda: world.phase == "Running")
    world.done = {1, 2}
    await world.until(lambda: world.status.get("completedIndexes") == {"worker": "1-2"})
    if anew:
        world.start_operator()
    goes(world, "mnist-worker-1")
    for _ in range(20):
        await world.step()
    assert (world.phase, world.status["attempt"]) == ("Running", 1)
    assert world.status["replicaStatuses"]["worker"]["succeeded"] == 2
    world.done = {0, 1, 2}
    await world.rest()
    assert (world.phase, world.status["attempt"]) == ("Succeeded", 1)
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}


async def test_another_attempt_and_a_suspension_begin_with_all_replicas() -> None:
    world = Torch()
    await world.until(lambda: world.phase == "Running")
    world.done = {1}
    await world.until(lambda: "completedIndexes" in world.status)
    _remove(world, "mnist-worker-0")
    await world.until(lambda: world.status["attempt"] == 2 and world.phase == "Running")
    assert sorted(world.pod_names()) == ["mnist-worker-0", "mnist-worker-1", "mnist-worker-2"]
    await world.until(lambda: world.status.get("completedIndexes") == {"worker": "1"})
    _remove(world, "mnist-worker-1")
    world.cluster.change(
        (KIND, *KEY),
        lambda job: (job["spec"].update(runPolicy={"suspend": True}), job["metadata"].update(generation=2)),
    )
    await world.until(lambda: world.phase == "Suspended")
    assert "completedIndexes" not in world.status


@given(st.sets(st.integers(0, 60)))
def test_texts_of_indexes_come_back(indexes: set[int]) -> None:
    assert set(indexes_in(indexes_text(sorted(indexes)))) == indexes


def test_texts_are_those_of_kubernetes_jobs_and_wrong_ones_cost_little() -> None:
    assert indexes_text([1, 3, 4, 5, 7]) == "1,3-5,7"
    assert indexes_text([]) == ""
    assert list(indexes_in("a,-1,2-x,4")) == [4]
    assert len(list(indexes_in("0-99999999999999"))) == MOST_REPLICAS + 1


async def test_a_lost_evaluator_takes_no_success_away() -> None:
    world = Torch("ParameterServer")
    await world.until(lambda: world.phase == "Running")
    world.done = {1, 2}
    await world.until(lambda: world.status.get("completedIndexes") == {"worker": "1-2"})
    _remove(world, "mnist-worker-1")
    _remove(world, "mnist-evaluator-0")
    await world.until(lambda: world.status["restarts"].get("evaluator") == 1)
    for _ in range(10):
        await world.step()
    assert world.status["completedIndexes"] == {"worker": "1-2"}
    assert world.pod_names() == ["mnist-evaluator-0", "mnist-worker-0", "mnist-worker-2"]
    world.done = {0, 1, 2}
    await world.rest()
    assert (world.phase, world.status["restarts"]["infrastructure"]) == ("Succeeded", 0)


async def test_a_restart_of_workers_alone_starts_completed_ones_too() -> None:
    world = Torch("ParameterServer")
    await world.until(lambda: world.phase == "Running")
    world.done = {1}
    await world.until(lambda: world.status.get("completedIndexes") == {"worker": "1"})
    _remove(world, "mnist-worker-1")
    world.done = set()
    _remove(world, "mnist-worker-2")
    await world.until(lambda: world.status["attempt"] == 2)
    await world.until(lambda: world.phase == "Running" and len(world.pod_names()) == 4)
    assert "completedIndexes" not in world.status
