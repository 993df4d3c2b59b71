"""The operator's view of the cluster: the caches that the informers keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtj.api.managed_by import other_manager_of
from dtj.reconcile.informers import Informers
from dtj.reconcile.view import Key, Owned, OwnedDeployment, OwnedPod, OwnedRecord


class Lister:
    """A `View`."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers

    def job(self, key: Key) -> Mapping[str, Any] | None:
        jobs = self._informers.jobs.of(key)
        # While the informer reads a list page by page, the cache may have a deleted and a new job of one name.
        return jobs[-1].manifest if jobs else None

    def pods(self, key: Key) -> Sequence[OwnedPod]:
        return self._informers.pods.of(key)

    def services(self, key: Key) -> Sequence[Owned]:
        return self._informers.services.of(key)

    def configs(self, key: Key) -> Sequence[Owned]:
        return self._informers.configs.of(key)

    def deployments(self, key: Key) -> Sequence[OwnedDeployment]:
        return self._informers.deployments.of(key)

    def records(self, key: Key) -> Sequence[OwnedRecord]:
        return self._informers.records.of(key)

    def active(self) -> Sequence[Key]:
        return [key for key, job in self._informers.jobs.active() if not other_manager_of(job.manifest)]
