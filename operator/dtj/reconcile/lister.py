"""The operator's view of the cluster: jobs as kopf has them, and what the informers know of their children."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

from dtj.api.managed_by import other_manager_of
from dtj.api.status import Phase
from dtj.cluster.port import ApiError
from dtj.reconcile.informers import Informers
from dtj.reconcile.view import Key, Owned, OwnedDeployment, OwnedPod

_ENDED = (Phase.SUCCEEDED.value, Phase.FAILED.value)
# Until then, where no word of a job came, it is asked again whether there are any.
_PATIENCE_SECONDS = 5.0


class Lister:
    """A `View`."""

    def __init__(self, jobs: Mapping[Key, Collection[Mapping[str, Any]]], children: Informers) -> None:
        """jobs: of each name; several when one went unseen and another came."""
        self._jobs = jobs
        self._children = children
        self.hidden: Set[str] = frozenset()
        """Uids of jobs that are shown no more although they are known of."""

    def job(self, key: Key) -> Mapping[str, Any] | None:
        jobs = [job for job in self._jobs.get(key, ()) if self._shown(job)]
        # The last: after a gap in the watch, an earlier job of the name may still be there.
        return jobs[-1] if jobs else None

    def pods(self, key: Key) -> Sequence[OwnedPod]:
        return self._children.pods.of(key)

    def services(self, key: Key) -> Sequence[Owned]:
        return self._children.services.of(key)

    def configs(self, key: Key) -> Sequence[Owned]:
        return self._children.configs.of(key)

    def deployments(self, key: Key) -> Sequence[OwnedDeployment]:
        return self._children.deployments.of(key)

    def active(self) -> Sequence[Key]:
        return [
            key
            for key, jobs in self._jobs.items()
            for job in jobs
            if job["status"].get("phase") not in _ENDED and not other_manager_of(job) and self._shown(job)
        ]

    def known(self) -> Mapping[str, Key]:
        """The uid of each job, hidden or not, and its name."""
        return {job["metadata"]["uid"]: key for key, jobs in self._jobs.items() for job in jobs}

    def _shown(self, job: Mapping[str, Any]) -> bool:
        return job["metadata"]["uid"] not in self.hidden


async def all_known(
    children: Informers, there: Callable[[], Awaitable[Set[str]]], jobs_read: asyncio.Event
) -> None:
    """Wait until all that is there is known: before that a pass would miss pods, and think others astray.

    there: uids of the API server's jobs. jobs_read: kopf told of a job, which it does when it has read all of them.
    """
    await children.synced()
    while not jobs_read.is_set():
        with suppress(ApiError):
            if not await there():
                return
        with suppress(TimeoutError):
            await asyncio.wait_for(jobs_read.wait(), _PATIENCE_SECONDS)
