"""The cache of jobs, in which each namespace has its budget of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dtj.api.job import Fault
from dtj.reconcile.budget import NAMESPACE_BYTES, Budget
from dtj.reconcile.informer import Cache
from dtj.reconcile.kept_job import KeptJob, keep, weight, without_spec
from dtj.reconcile.view import CachedJob, Key
from dtj.status.times import read_time

_DATA_FACTOR = 30
# The cache keeps two pods for each replica of a job, since a replica's next pod may come before the last is gone, and
# this many more.
_MORE_PODS = 100


class JobCache(Cache[CachedJob]):
    """Keeps all jobs. A job for which its namespace's budget of memory has no room is kept without its spec."""

    def __init__(
        self,
        job_changed: Callable[[Key], None],
        judged: Callable[[Key], None],
        missing: Callable[[Key], None],
        most: int = NAMESPACE_BYTES,
    ) -> None:
        """job_changed: called with each job that was created, changed, or deleted.
        judged: called with each unchanged job whose spec the cache has dropped, or keeps again.
        missing: called with each job that has room again, and whose spec the cache does not have.
        most: bytes that the jobs of a namespace may take.
        """
        super().__init__(self._kept, job_changed, key=own_key)
        self._judged = judged
        self._missing = missing
        self._most = most
        self._budgets: dict[str, Budget] = {}
        self._moved: set[str] = set()

    def put(self, manifest: Mapping[str, Any]) -> None:
        """See `Cache`."""
        super().put(manifest)
        self._settle()

    def drop(self, uid: str) -> None:
        """See `Cache`."""
        key = self._keys.get(uid)
        if key is not None:
            self._moved |= self._budgets[key[0]].drop(uid)
            self._moved.discard(uid)
            if not self._budgets[key[0]]:
                del self._budgets[key[0]]
        super().drop(uid)
        self._settle()

    def has(self, uid: str) -> bool:
        """Return whether the cache has a job of this uid."""
        return uid in self._keys

    def has_at(self, uid: str, key: Key) -> bool:
        """Return whether the job of this key has this uid."""
        return self._keys.get(uid) == key

    def most_pods(self, key: Key) -> int:
        """Return how many pods are kept of the job of this key."""
        return 2 * max((job.manifest.replicas for job in self.of(key)), default=0) + _MORE_PODS

    def _kept(self, manifest: Mapping[str, Any]) -> CachedJob:
        job = keep(manifest, self._manifest_of)
        uid, namespace = job.metadata["uid"], job.metadata["namespace"]
        budget = self._budgets.setdefault(namespace, Budget(self._most))
        size = weight(job)
        self._moved |= budget.put(uid, _created(job), size, ended=job.ended) - {uid}
        if not budget.has_room(uid):
            return _cached(self._without_spec(job))
        # A job is large by the size of its decoded data. The weight of an ended job, which is not decoded again, is
        # that of its text: the decoded data would have at most 30 times this size.
        return _cached(job, large=budget.is_large(_DATA_FACTOR * size if job.ended else size))

    def _manifest_of(self, uid: str) -> KeptJob | None:
        key = self._keys.get(uid)
        return None if key is None else self._jobs[key][uid].manifest

    def _settle(self) -> None:
        """Drop the specs of jobs that no longer fit into the budget, and request the specs of jobs that fit again."""
        moved, self._moved = self._moved, set()
        for uid in moved:
            key = self._keys.get(uid)
            if key is None:
                continue
            cached = self._jobs[key][uid]
            room = self._budgets[key[0]].has_room(uid)
            if room and not cached.whole and not cached.manifest.ended:
                self._missing(key)
            elif not room and cached.whole:
                self._set(key, uid, _cached(self._without_spec(cached.manifest)))
                self._judged(key)

    def _without_spec(self, job: KeptJob) -> KeptJob:
        return job if job.not_kept else without_spec(job, no_room(job.metadata["namespace"], self._most))

    def _notify(self, key: Key, before: CachedJob | None, after: CachedJob | None) -> None:
        if before and after and before.version == after.version:
            self._judged(key)
        else:
            super()._notify(key, before, after)

    def is_large(self, key: Key) -> bool:
        """Return whether the job of this key is large."""
        return any(job.large for job in self.of(key))

    def active(self) -> Iterable[tuple[Key, CachedJob]]:
        """Return the jobs that have not ended."""
        return ((key, job) for key, job in self.items() if not job.manifest.ended)


def own_key(manifest: Mapping[str, Any]) -> Key:
    """Return the key of a job."""
    metadata = manifest["metadata"]  # Each access decodes the metadata of an `ObjectText` again.
    return metadata["namespace"], metadata["name"]


def no_room(namespace: str, most: int) -> Fault:
    """Return the fault of a job for which its namespace has no room."""
    return Fault(
        "spec",
        f"the jobs of namespace {namespace} take more than {most / 1e6:g} MB of the operator's memory, and "
        "this job is among the largest or newest: make the job smaller, wait until other jobs of the namespace "
        "have ended or are deleted, or ask the administrator of the operator to raise --namespace-memory",
        passes=True,
    )


def _cached(job: KeptJob, *, large: bool = False) -> CachedJob:
    return CachedJob(job.metadata["uid"], job.metadata["resourceVersion"], job, _whole(job), large)


def _created(job: KeptJob) -> float:
    created = job.metadata["creationTimestamp"]
    return read_time(created).timestamp() if created else 0.0


def _whole(job: KeptJob) -> bool:
    return job.not_kept is None or not job.not_kept.passes
