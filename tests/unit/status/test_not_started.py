"""A pod that has a node and no container: a volume, the network or the image is missing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from dtj.api.job import Manifest
from dtj.status.pods import view_pod
from dtj.status.times import written_time
from tests.unit.support.fake_cluster import WRITES
from tests.unit.support.pods import WORKER_0, WORKER_1, Life, at, condition, running, scheduled, waiting
from tests.unit.support.world import World


def since(pod: Manifest, seconds: float) -> Manifest:
    pod["status"]["conditions"][0]["lastTransitionTime"] = written_time(at(seconds))
    return pod


@pytest.mark.parametrize(
    "pod", [scheduled(WORKER_1), waiting(WORKER_1, "ContainerCreating")], ids=["no status", "creating"]
)
def test_a_pod_without_a_container_is_named_after_30_seconds(pod: Manifest) -> None:
    life = Life()
    pods = running(WORKER_0), since(pod, 0)
    told = condition(life.see(*pods, seconds=29), "Running")
    assert told["reason"] == "PodsStarting"
    assert life.decision is not None
    assert life.decision.look_again == 1

    told = condition(life.see(*pods, seconds=30), "Running")
    assert (told["status"], told["reason"]) == ("False", "PodNotStarted")
    assert told["message"] == (
        f"{WORKER_1} on node-of-{WORKER_1} has no container yet (volume, network or image): "
        f"kubectl describe pod {WORKER_1}"
    )
    assert life.decision.look_again is None


@pytest.mark.parametrize("state", ["running", "terminated"])
def test_an_init_container_that_has_begun_is_a_container(state: str) -> None:
    pod = scheduled(WORKER_1)
    assert view_pod(pod).unstarted
    pod["status"]["initContainerStatuses"] = [{"name": "download", "state": {state: {"exitCode": 0}}}]
    assert not view_pod(pod).unstarted
    assert not view_pod(running(WORKER_1)).unstarted


def test_a_missing_volume_is_told_without_an_event_of_the_pod() -> None:
    async def live() -> None:
        world = World()
        world.kubelet.hold = {WORKER_0}
        await world.until(lambda: world.condition("Running").get("reason") == "PodNotStarted", 100)
        assert world.events() == []
        world.cluster.calls.clear()
        began = world.cluster.now
        await world.until(lambda: world.cluster.now - began > timedelta(seconds=60), 100)
        assert [call for call in world.cluster.calls if call.verb in WRITES] == []
        world.kubelet.hold = set()
        await world.until(lambda: world.phase == "Running")

    asyncio.run(live())
