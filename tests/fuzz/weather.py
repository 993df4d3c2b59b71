"""What happens around a random job: nodes' clocks, quotas, ends of programs, pods that go, a namespace that goes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

from dtj.api.identity import KIND, LABEL_INDEX, LABEL_ROLE
from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError
from tests.unit.support import modern
from tests.unit.support.fake_cluster import Call, name_of
from tests.unit.support.kubelet import Ending
from tests.unit.support.world import KEY, World

_CLOCKS = (0, 0, 0, -6, -60, -3600, 6, 3600)
"""Seconds that nodes are ahead."""
_QUOTAS = (None, None, None, 0, 1, 3)
_CODES = (0, 0, 0, 1, 3, 137, 143, 255)
_TEXTS = (
    "",
    "Traceback\nValueError: x",
    '{"class": "ConnectionLost", "exitCode": 1}',
    '{"exitCode": 0}',
    "[" * 3000,
)
_TRAINS = ("worker", "chief", "master")


class SetClocks(World):
    """The API server's clock may be set back, which the clock of the operator's waits does not follow."""

    set_back = 0.0

    def elapsed(self) -> float:
        return super().elapsed() + self.set_back


class Weather:
    """Drawn for one job. Mild weather gives the job no reason to restart."""

    def __init__(self, chance: random.Random, world: SetClocks, most_pods: int) -> None:
        """most_pods: the quota of pods, where the weather draws none."""
        self._chance, self._world = chance, world
        self.mild = chance.random() < 0.5
        self._strategy = world.cluster.job()["spec"]["strategy"]
        self._quota = chance.choice(_QUOTAS)
        self._quota_until = chance.randrange(2, 12)
        self._most_pods = most_pods
        self._vanishes = chance.randrange(1, 12) if chance.random() < 0.1 else None
        self.vanished = False
        self._now = 0
        self._complete: set[str] = set()
        """uids of pods that had completed before the last pass."""
        world.kubelet.clock = timedelta(seconds=chance.choice(_CLOCKS))
        world.kubelet.shows_end = chance.random() < 0.5
        world.kubelet.program = self._program
        world.cluster.refuse = self._refuse
        world.cluster.meanwhile = self._without_namespace

    def passes(self, passed: int) -> None:
        """Do what happens before a pass."""
        self._now = passed
        cluster, chance = self._world.cluster, self._chance
        if passed == self._vanishes:
            self.vanished = True
            for name in [name for name in cluster.objects if name[1] == KEY[0]]:
                cluster.objects.pop(name)
                cluster.log.append((name, None))
            return
        if chance.random() < 0.1:
            seconds = chance.choice((-30, 30, 600))
            cluster.now += timedelta(seconds=seconds)
            self._world.set_back -= min(seconds, 0)
        seen, self._complete = self._complete, set()
        for pod in list(self._pods()):
            if pod["status"].get("phase") == "Succeeded":
                self._complete.add(pod["metadata"]["uid"])
                if pod["metadata"]["uid"] not in seen:
                    continue  # No pass has seen the success.
            ended = pod["status"].get("phase") in ("Succeeded", "Failed")
            if chance.random() < (
                0.5 if pod["status"].get("phase") == "Succeeded" else 0 if self.mild else 0.05
            ):
                self._goes(pod, ended=ended)

    def _goes(self, pod: Manifest, *, ended: bool) -> None:
        cluster, name = self._world.cluster, pod["metadata"]["name"]
        match self._chance.randrange(5):
            case 0:
                cluster.remove(name_of(pod))
            case 1:
                modern.evict(cluster, name)
            case 2:
                modern.mark(cluster, name, modern.TAINT)
            case 3 if not ended and pod["status"].get("containerStatuses"):
                modern.evict_by_kubelet(cluster, name)
            case _:
                cluster.end_pod(pod)

    def _pods(self) -> Iterator[Manifest]:
        """At most so many as are looked at in time."""
        replicas = (
            pod
            for pod in self._world.cluster.of_kind("Pod")
            if LABEL_ROLE in pod["metadata"].get("labels", {})
        )
        for _, pod in zip(range(20), replicas, strict=False):
            yield pod

    def _program(self, pod: Manifest, ran: int) -> Ending | None:
        labels = pod["metadata"]["labels"]
        # The same end each time that a pod is looked at.
        chance = random.Random(f"{pod['metadata']['uid']}/{labels[LABEL_INDEX]}")
        # Workers of Horovod run an sshd, which does not end.
        trains = ("launcher",) if self._strategy == "Horovod" else _TRAINS
        if labels[LABEL_ROLE] not in trains or ran < chance.randrange(2, 8):
            return None
        return (0, '{"exitCode": 0}') if self.mild else (chance.choice(_CODES), chance.choice(_TEXTS))

    def _refuse(self, made: Manifest) -> ApiError | None:
        if made["kind"] != "Pod":
            return None
        within = self._quota if self._quota is not None and self._now < self._quota_until else self._most_pods
        full = len(self._world.cluster.created_pods) >= within
        return modern.quota()(made) if full else None

    def _without_namespace(self, call: Call, made: Manifest) -> None:
        if not self.vanished or call.verb not in ("create", "patch", "replace"):
            return
        if made["kind"] == KIND:
            raise ApiError(404, "NotFound", f'distributedtrainingjobs.dtj.dev "{call.name}" not found')
        raise ApiError(404, "NotFound", f'namespaces "{KEY[0]}" not found')
