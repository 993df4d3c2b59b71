"""The caches of jobs and of what they own, and which change of a pod needs a pass at once.

`leader` starts them, and passes read them through `view`. `informer` has the list and the watch of one kind.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from dtj.api.identity import API_VERSION, KIND, LABEL_JOB, LABEL_MANAGED_BY, LABEL_RECORD, MANAGER
from dtj.cluster.interface import ApiError, Selection, Source
from dtj.reconcile.budget import NAMESPACE_BYTES
from dtj.reconcile.health import Stuck
from dtj.reconcile.informer import Cache, Informer
from dtj.reconcile.job_cache import JobCache
from dtj.reconcile.kept_job import keep
from dtj.reconcile.owned_cache import OwnedCache
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

# PodUrgency decides which changes of a job's pods need a pass at once. The pass for any other change begins a second
# later, so that one pass handles many changes.

_PENDING, _RUNNING, _READY, _ENDING = range(4)


class PodUrgency:
    """Counts the pods of each job by their stage: pending, running, ready, or ending."""

    def __init__(self) -> None:
        self._pods: dict[Key, Counter[int]] = {}
        """The number of pods in each stage, by job."""

    def __call__(self, key: Key, before: OwnedPod | None, after: OwnedPod | None) -> bool:
        """Return whether a change of a pod may advance its job or stop its job.

        A new pod is not urgent: a pass created the pod. Pods that start advance a job when the last of them starts.
        The choice of a node and the pull of an image change only figures of the status.

        before, after: the pod before and after the change; None when the pod does not exist.
        """
        counts = self._pods.setdefault(key, Counter())
        was, now = _how_far(before), _how_far(after)
        counts[was] -= before is not None
        counts[now] += after is not None
        if not counts.total():
            del self._pods[key]
        if after is None or _end(after) != (_end(before) if before else _NO_END):
            return True
        return now > was and not any(counts[far] for far in range(now))


def _how_far(pod: OwnedPod | None) -> int:
    if pod is None or pod.view.phase == "Pending":
        return _PENDING
    if not pod.view.running:
        return _ENDING
    return _READY if pod.view.ready else _RUNNING


def _end(pod: OwnedPod) -> tuple[object, ...]:
    view = pod.view
    return (
        view.phase in ("Succeeded", "Failed"),
        view.ended,
        view.exit,
        view.deleting,
        view.disrupted,
        view.silent,
    )


_NO_END = False, False, None, False, False, False


_log = logging.getLogger(__name__)
# The API server applies this label selector, so the operator receives no objects of other owners.
_OURS = f"{LABEL_MANAGED_BY}={MANAGER},{LABEL_JOB}"
_RECORDS = f"{LABEL_MANAGED_BY}={MANAGER},{LABEL_RECORD}"
# The pause after which the operator repeats a request for the spec of a job that the API server refused.
_AGAIN_SECONDS = 30.0


class Informers:
    """A cache for each kind, with an informer for each namespace. The caller must call `stop` at the end."""

    def __init__(
        self,
        source: Source,
        namespaces: Sequence[str],
        changed: Callable[[Key], None],
        changed_little: Callable[[Key], None],
        job_changed: Callable[[Key], None],
        namespace_bytes: int = NAMESPACE_BYTES,
    ) -> None:
        """namespaces: the namespaces to watch; empty for all namespaces.
        changed: called with each job of which an object changed.
        changed_little: called instead of `changed` when the change is not urgent.
        job_changed: called with each job that was created, changed, or deleted.
        namespace_bytes: bytes that the jobs of a namespace may take.
        """
        calls = changed, changed_little
        self._source = source
        self._missing: asyncio.Queue[Key] = asyncio.Queue()
        self.jobs = JobCache(job_changed, changed, self._missing.put_nowait, namespace_bytes)
        owned = self.jobs.has_at, *calls
        self.pods = OwnedCache(_pod, *owned, PodUrgency(), most=self.jobs.most_pods)
        self.services = OwnedCache(_service, *owned)
        self.configs = OwnedCache(_config, *owned)
        self.deployments = OwnedCache(view_deployment, *owned)
        self.records = OwnedCache(view_record, *owned, key=_recorded_key)
        caches: Mapping[tuple[str, str, str], Cache[Any]] = {
            (API_VERSION, KIND, ""): self.jobs,
            ("v1", "Pod", _OURS): self.pods,
            ("v1", "Service", _OURS): self.services,
            ("v1", "ConfigMap", _OURS): self.configs,
            ("apps/v1", "Deployment", _OURS): self.deployments,
            ("v1", "Pod", _RECORDS): self.records,
        }
        self.namespaces: Sequence[str | None] = list(dict.fromkeys(namespaces)) or [None]
        self._informers = {
            namespace: [
                Informer(source, _selection(*selection, namespace), cache)
                for selection, cache in caches.items()
            ]
            for namespace in self.namespaces
        }
        self._caches = caches.values()
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        """Begin to list and watch."""
        for jobs, *others in self._informers.values():
            self._tasks.append(asyncio.create_task(jobs.run()))
            self._tasks += [asyncio.create_task(_after(jobs, other)) for other in others]
        self._tasks.append(asyncio.create_task(self._fetch()))

    async def synced(self, namespace: str | None = None) -> None:
        """Wait until every informer of this namespace has its first list in the cache."""
        for informer in self._informers[namespace]:
            await informer.synced.wait()

    def refused(self) -> dict[str, str]:
        """Return the API server's message for each namespace in which it refuses a list or a watch.

        An empty string as namespace stands for all namespaces together.
        """
        refusals = (
            (namespace or "", next((each.refusal for each in informers if each.refusal), None))
            for namespace, informers in self._informers.items()
        )
        return {namespace: words for namespace, words in refusals if words}

    async def stop(self) -> None:
        """End every watch."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _fetch(self) -> NoReturn:
        """List the jobs whose spec the cache misses, one at a time. The operator has no permission to get a job."""
        while True:
            key = await self._missing.get()
            try:
                async for jobs, _ in self._source.pages(_selection(API_VERSION, KIND, "", *key)):
                    # The list may still have a job that was deleted in the meantime. Do not put it back into the
                    # cache.
                    for manifest in (job for job in jobs if self.jobs.has(job["metadata"]["uid"])):
                        self.jobs.put(manifest)
            except ApiError as error:
                _log.warning("the spec of job %s/%s can't be read: %s", *key, error)
                # Repeat the request later, without a sleep in this loop: other jobs wait in the same queue.
                asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._missing.put_nowait, key)

    def check(self) -> int:
        """Return the number of cached objects. Raises Stuck when an informer has ended."""
        if any(task.done() for task in self._tasks):
            raise Stuck("a task that watches jobs or their objects has ended")
        return sum(map(len, self._caches))


async def _after(jobs: Informer[Any], informer: Informer[Any]) -> NoReturn:
    """Run an informer of objects that jobs own, after the list of jobs: without the list, no owner would be known."""
    await jobs.synced.wait()
    await informer.run()


def _selection(api_version: str, kind: str, labels: str, namespace: str | None, name: str = "") -> Selection:
    return Selection(api_version, kind, labels, namespace, name, see=keep if kind == KIND else None)


def _recorded_key(manifest: Mapping[str, Any]) -> Key:
    return manifest["metadata"]["namespace"], manifest["metadata"]["labels"][LABEL_RECORD]


def _pod(manifest: Mapping[str, Any]) -> OwnedPod:
    return owned_pod(manifest, view_pod(manifest))


def _service(manifest: Mapping[str, Any]) -> Owned:
    metadata = manifest["metadata"]
    return Owned(metadata["name"], controller_uid(manifest), uid=metadata["uid"])


def _config(manifest: Mapping[str, Any]) -> Owned:
    # Keep only a digest: anybody may create a ConfigMap of a megabyte with the labels of a job. Compute the digest
    # only if a job owns the ConfigMap.
    metadata, owner = manifest["metadata"], controller_uid(manifest)
    digest = data_digest(manifest.get("data") or {}) if owner else ""
    return Owned(metadata["name"], owner, digest, metadata["uid"])


# The operator's view of the cluster: the caches that the informers keep.


class Lister:
    """The `View` that passes read: the newest content of the informers' caches."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers

    def job(self, key: Key) -> Mapping[str, Any] | None:
        jobs = self._informers.jobs.of(key)
        # Take the last job: while the informer reads a list page by page, the cache may have a deleted and a new job
        # of one name.
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
        return [key for key, job in self._informers.jobs.active() if not job.manifest.other_manager]
