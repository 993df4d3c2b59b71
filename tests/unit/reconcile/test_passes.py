"""The number of passes in the life of a job, where only events and timers start passes.

* passes of a small job
* which changes are urgent
* events and timers without a resync
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from dtj.api.identity import KIND, LABEL_ATTEMPT, LABEL_ROLE
from dtj.api.job import Manifest
from dtj.reconcile.controller import Controller
from dtj.reconcile.informers import Informers, Lister, PodUrgency
from dtj.reconcile.metrics import OperatorMetrics
from dtj.reconcile.queue import WorkQueue
from dtj.reconcile.reconciler import Reconciler
from dtj.reconcile.view import OwnedPod, owned_pod
from dtj.status.pods import view_pod
from tests.unit.support import pods, virtual_time
from tests.unit.support.kubelet import Ending
from tests.unit.support.programs import fails
from tests.unit.support.world import KEY, World

TICK = 0.05
"""Seconds until the caches know of a change."""
MOVES = 6
"""Ticks between two steps of pods: each is an event of its own."""


class Driven(World):
    """The operator's own queue, controller and caches, before the fake API server."""

    counts_after = 5.0

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.queue = WorkQueue(asyncio.get_running_loop().time, rest=0.02)
        self.informers = Informers(
            SimpleNamespace(),  # type: ignore[arg-type]
            [],
            self.queue.add,
            self.queue.add_soon,
            lambda key: self.controller.cached(key),
        )
        lister = Lister(self.informers)
        self.metrics = OperatorMetrics()
        self.reconciler = Reconciler(
            self.cluster,
            lister,
            self.progress,  # type: ignore[arg-type]
            self.metrics,
            lambda: self.cluster.now,
            self.plan,
            elapsed=self.elapsed,
            counts_after=self.counts_after,
        )
        self.controller = Controller(self.queue, self.reconciler, lister, self.metrics)
        self.delivered = 0

    @property
    def passes(self) -> float:
        return self.metrics.registry.get_sample_value("dtj_reconcile_duration_seconds_count") or 0.0

    def tell(self) -> None:
        """Deliver what changed since the last time."""
        caches = {
            "Pod": self.informers.pods,
            "Service": self.informers.services,
            "ConfigMap": self.informers.configs,
        }
        uids = {name: there["metadata"]["uid"] for name, there in self.cluster.log if there is not None}
        for name, manifest in self.cluster.log[self.delivered :]:
            if name[0] == KIND and manifest is not None:
                self.informers.jobs.put(manifest)
                self.controller.changed(KEY, manifest["metadata"]["resourceVersion"])
            elif name[0] in caches and manifest is not None:
                caches[name[0]].put(manifest)
            elif name[0] in caches:
                caches[name[0]].drop(uids[name])
        self.delivered = len(self.cluster.log)

    async def live(self, seconds: float) -> None:
        """Let so much time pass; one pod is moved at a time."""
        self.controller.start(2)
        for tick in range(int(seconds / TICK)):
            await asyncio.sleep(TICK)
            self.cluster.now += timedelta(seconds=TICK)
            moved = [pod for pod in self.cluster.of_kind("Pod") if "exitCode" not in str(pod["status"])]
            if moved and tick % MOVES == 0:
                self.kubelet._move(moved[tick // MOVES % len(moved)])
            self.tell()
        await self.controller.stop()


def lived(seconds: float, program: Any = None, **spec: Any) -> Driven:
    async def life() -> Driven:
        world = Driven(**spec)
        if program:
            world.kubelet.program = program
        await world.live(seconds)
        return world

    return virtual_time.run(life())


def test_a_small_job_takes_ten_passes_at_most() -> None:
    world = lived(60.0)

    assert world.phase == "Succeeded"
    assert world.status["replicaStatuses"]["worker"]["active"] == 0
    assert world.passes <= 10


def seen(pod: Manifest | None) -> OwnedPod | None:
    return pod and owned_pod(pod, view_pod(pod))


LAUNCHER = "mnist-launcher-0"
READY = pods.running(LAUNCHER)


@pytest.mark.parametrize(
    ("before", "after", "at_once"),
    [
        (None, pods.pod(LAUNCHER), False),
        (pods.pod(LAUNCHER), pods.scheduled(LAUNCHER), False),
        (pods.scheduled(LAUNCHER), pods.waiting(LAUNCHER, "ImagePullBackOff"), False),
        (pods.scheduled(LAUNCHER), pods.running(LAUNCHER, ready=False), True),
        (pods.running(LAUNCHER, ready=False), READY, True),
        (None, READY, True),
        (READY, pods.ended(LAUNCHER, 3), True),
        (READY, pods.deleting(pods.running(LAUNCHER)), True),
        (READY, None, True),
    ],
)
def test_what_lets_a_job_go_on_is_urgent(before: Any, after: Any, at_once: bool) -> None:
    urgent = PodUrgency()
    urgent(KEY, None, seen(before))

    assert urgent(KEY, seen(before), seen(after)) is at_once


def test_pods_that_start_are_urgent_when_the_last_of_them_does() -> None:
    urgent, workers = PodUrgency(), [f"mnist-worker-{index}" for index in range(3)]
    for name in workers:
        urgent(KEY, None, seen(pods.pod(name)))

    assert [urgent(KEY, seen(pods.pod(name)), seen(pods.running(name, ready=False))) for name in workers] == [
        False,
        False,
        True,
    ]
    assert [
        urgent(KEY, seen(pods.running(name, ready=False)), seen(pods.running(name))) for name in workers
    ] == [False, False, True]
    for name in workers:
        assert urgent(KEY, seen(pods.running(name)), None)
    assert urgent._pods == {}


def chief_fails_once(pod: Manifest, ran: int) -> Ending | None:
    """The chief's and the workers' programs."""
    labels = pod["metadata"]["labels"]
    if labels[LABEL_ROLE] == "ps" or ran < 2:
        return None
    return (3 if labels[LABEL_ROLE] == "chief" and labels[LABEL_ATTEMPT] == "1" else 0), ""


@pytest.mark.parametrize(
    ("program", "spec"),
    [
        (fails(1), {}),
        (
            chief_fails_once,
            {
                "strategy": "ParameterServer",
                "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}},
            },
        ),
    ],
    ids=["Horovod", "ParameterServer"],
)
def test_events_and_timers_alone_bring_a_job_that_fails_once_to_its_end(program: Any, spec: Any) -> None:
    world = lived(120.0, program, **spec)

    assert (world.phase, world.status["restarts"]["application"]) == ("Succeeded", 1)
