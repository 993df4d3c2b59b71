"""The watch cache of the operator over the fake cluster: tests deliver its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_not
from types import MappingProxyType
from typing import Any

from dtj.api.identity import KIND, LABEL_JOB, LABEL_RECORD
from dtj.api.job import Manifest
from dtj.reconcile.record import view_record
from dtj.reconcile.tensorboard import view_deployment
from dtj.reconcile.view import (
    Key,
    Owned,
    OwnedDeployment,
    OwnedPod,
    OwnedRecord,
    controller_uid,
    data_digest,
    owned_pod,
)
from dtj.status.pods import view_pod
from tests.unit.support.copies import copied
from tests.unit.support.fake_cluster import WATCHED, FakeCluster, Name, name_of


class FakeView:
    """A cache over the cluster's watches, which contains only delivered changes."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._objects: dict[Name, Manifest] = {}
        self._pods: dict[Name, OwnedPod] = {}
        """Views of pods since their last change, because the operator's cache also reads each change once."""
        self._listed: dict[Key, list[OwnedPod]] = {}
        """What `pods` returned last."""
        self._seen: dict[str, int] = {}

    def deliver(
        self, *kinds: str, count: int | None = None, behind: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Deliver all changes, or the next `count`, of these kinds (of every kind when none is named).

        behind: how many of the last changes of a kind are held back.
        """
        for kind in kinds or WATCHED:
            changes = [change for change in self._cluster.log if change[0][0] == kind]
            begin = self._seen.get(kind, 0)
            end = len(changes) if count is None else min(begin + count, len(changes))
            end = max(begin, end - behind.get(kind, 0))
            for name, manifest in changes[begin:end]:
                self._apply(name, manifest)
            self._seen[kind] = end

    def lose(self, kind: str) -> None:
        """Never deliver the next change of that kind."""
        self._seen[kind] = min(self.seen(kind) + 1, sum(name[0] == kind for name, _ in self._cluster.log))

    def show_again(self, kind: str, back: int) -> None:
        """Deliver an earlier change again, `back` changes before the last, so that the cache shows an old object."""
        changes = [change for change in self._cluster.log if change[0][0] == kind][: self.seen(kind)]
        if changes:
            name, manifest = changes[max(len(changes) - 1 - back, 0)]
            self._apply(name, manifest)

    def relist(self) -> None:
        """Replace the cache by a new list of all objects."""
        self._objects = copied(self._cluster.objects)
        self._pods.clear()
        for kind in WATCHED:
            self._seen[kind] = sum(name[0] == kind for name, _ in self._cluster.log)

    def _apply(self, name: Name, manifest: Manifest | None) -> None:
        self._pods.pop(name, None)
        if manifest is None:
            self._objects.pop(name, None)
        else:
            self._objects[name] = manifest

    def seen(self, kind: str) -> int:
        """Return the number of delivered changes of that kind."""
        return self._seen.get(kind, 0)

    def job(self, key: Key) -> Mapping[str, Any] | None:
        return copied(self._objects.get((KIND, *key)))

    def _children(self, kind: str, key: Key) -> list[Manifest]:
        return [
            there
            for name, there in self._objects.items()
            if name[:2] == (kind, key[0]) and there["metadata"].get("labels", {}).get(LABEL_JOB) == key[1]
        ]

    def pods(self, key: Key) -> Sequence[OwnedPod]:
        pods = [self._pod(name_of(pod), pod) for pod in self._children("Pod", key)]
        before = self._listed.get(key, [])
        if len(before) != len(pods) or any(map(is_not, before, pods)):
            self._listed[key] = pods
        return self._listed.get(key, before)

    def _pod(self, name: Name, pod: Manifest) -> OwnedPod:
        if name not in self._pods:
            self._pods[name] = owned_pod(pod, view_pod(pod))
        return self._pods[name]

    def services(self, key: Key) -> Sequence[Owned]:
        return [Owned(s["metadata"]["name"], controller_uid(s)) for s in self._children("Service", key)]

    def configs(self, key: Key) -> Sequence[Owned]:
        return [
            Owned(c["metadata"]["name"], controller_uid(c), data_digest(c["data"]))
            for c in self._children("ConfigMap", key)
        ]

    def deployments(self, key: Key) -> Sequence[OwnedDeployment]:
        return [view_deployment(deployment) for deployment in self._children("Deployment", key)]

    def records(self, key: Key) -> Sequence[OwnedRecord]:
        return [
            view_record(pod)
            for name, pod in self._objects.items()
            if name[:2] == ("Pod", key[0]) and pod["metadata"].get("labels", {}).get(LABEL_RECORD) == key[1]
        ]

    def active(self) -> Sequence[Key]:
        return [(name[1], name[2]) for name in self._objects if name[0] == KIND]
