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

TORCH = ("TorchDistributed", {})
# Workers alone, under MultiWorkerMirroredStrategy, and beside them an evaluator.
MIRRORED = ("ParameterServer", {"chief": {"replicas": 0}, "evaluator": {}})
# A chief decides, and a ps holds the state.
WITH_PS = ("ParameterServer", {"ps": {"replicas": 1}})


class Finishing(World):
    """Three workers: those in `done` end at once, the others train on. Chief and evaluator end with worker 0."""

    def __init__(self, form: tuple[str, Manifest] = TORCH, **spec: Any) -> None:
        strategy, roles = form
        super().__init__(**{"strategy": strategy, "replicaSpecs": {"worker": {"replicas": 3}} | roles} | spec)
        self.done: set[int] = set()
        self.kubelet.program = self.program

    def program(self, pod: Manifest, ran: int) -> Ending | None:
        labels = pod["metadata"]["labels"]
        if labels[LABEL_ROLE] != "worker":
            return (0, "") if 0 in self.done and labels[LABEL_ROLE] != "ps" else None
        return (0, "") if int(labels[LABEL_INDEX]) in self.done and ran >= 2 else None


def _remove(world: World, name: str) -> None:
    world.cluster.remove(("Pod", "ml", name))


def _evict(world: World, name: str) -> None:
    """The Eviction API marks completed pods too, and then deletes them."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    world.cluster.change(("Pod", "ml", name), lambda pod: pod["status"].update(conditions=[condition]))


@pytest.mark.parametrize("goes", [_remove, _evict])
@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("form", [TORCH, MIRRORED, WITH_PS], ids=["torch", "mirrored", "ps"])
async def test_the_pod_of_a_completed_worker_goes(
    goes: Callable[[World, str], None], anew: bool, form: tuple[str, Manifest]
) -> None:
    world = Finishing(form)
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


async def test_a_restart_keeps_completed_workers_beside_ps_unless_the_chief_starts_again() -> None:
    world = Finishing(WITH_PS)
    await world.until(lambda: world.phase == "Running")
    world.done = {1}
    await world.until(lambda: world.status.get("completedIndexes") == {"worker": "1"})
    _remove(world, "mnist-worker-1")
    _remove(world, "mnist-worker-2")
    await world.until(lambda: world.status["attempt"] == 2 and world.phase == "Running")
    assert world.status["completedIndexes"] == {"worker": "1"}
    assert "mnist-worker-1" not in world.pod_names()

    world.done = set()
    _remove(world, "mnist-chief-0")
    await world.until(lambda: world.status["attempt"] == 3 and world.phase == "Running")
    assert "completedIndexes" not in world.status
    assert "mnist-worker-1" in world.pod_names()


async def test_another_attempt_and_a_suspension_begin_with_all_replicas() -> None:
    world = Finishing()
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
    world = Finishing(MIRRORED)
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
    world = Finishing(MIRRORED)
    await world.until(lambda: world.phase == "Running")
    world.done = {1}
    await world.until(lambda: world.status.get("completedIndexes") == {"worker": "1"})
    _remove(world, "mnist-worker-1")
    world.done = set()
    _remove(world, "mnist-worker-2")
    await world.until(lambda: world.status["attempt"] == 2)
    await world.until(lambda: world.phase == "Running" and len(world.pod_names()) == 4)
    assert "completedIndexes" not in world.status
