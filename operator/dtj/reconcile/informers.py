"""Caches of jobs and of the objects that the operator creates for jobs, with the fields that a pass reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from dtj.api.identity import API_VERSION, KIND, LABEL_JOB, LABEL_MANAGED_BY, LABEL_RECORD, MANAGER
from dtj.cluster.port import ApiError, Selection, Source
from dtj.reconcile.budget import NAMESPACE_BYTES
from dtj.reconcile.informer import Cache, Informer
from dtj.reconcile.job_cache import JobCache
from dtj.reconcile.owned_cache import OwnedCache
from dtj.reconcile.record import view_record
from dtj.reconcile.stuck import Stuck
from dtj.reconcile.tensorboard import view_deployment
from dtj.reconcile.urgency import PodUrgency
from dtj.reconcile.view import Key, Owned, OwnedPod, controller_uid, data_digest, owned_pod
from dtj.status.pods import view_pod

_log = logging.getLogger(__name__)
# The API server applies this label selector, so the operator receives no objects of other owners.
_OURS = f"{LABEL_MANAGED_BY}={MANAGER},{LABEL_JOB}"
_RECORDS = f"{LABEL_MANAGED_BY}={MANAGER},{LABEL_RECORD}"
# The pause before the spec of a job is asked for again, when the API server refused it.
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
                Informer(source, Selection(*selection, namespace), cache)
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
        """Return the namespaces in which the API server refuses a list or a watch, with its words.

        The name of all namespaces together is an empty string.
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
                async for jobs, _ in self._source.pages(Selection(API_VERSION, KIND, "", *key)):
                    # A job that was deleted meanwhile must not come back.
                    for manifest in (job for job in jobs if self.jobs.has(job["metadata"]["uid"])):
                        self.jobs.put(manifest)
            except ApiError as error:
                _log.warning("the spec of %s/%s: %s", *key, error)
                # Without a pause here: jobs of other namespaces wait behind this one.
                asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._missing.put_nowait, key)

    def check(self) -> int:
        """Return the number of cached objects. Raises Stuck when an informer has ended."""
        if any(task.done() for task in self._tasks):
            raise Stuck("a watch of jobs or their objects ended")
        return sum(map(len, self._caches))


async def _after(jobs: Informer[Any], informer: Informer[Any]) -> NoReturn:
    """Run an informer of what jobs own. Until the jobs are listed, all objects would have an unknown owner."""
    await jobs.synced.wait()
    await informer.run()


def _recorded_key(manifest: Mapping[str, Any]) -> Key:
    return manifest["metadata"]["namespace"], manifest["metadata"]["labels"][LABEL_RECORD]


def _pod(manifest: Mapping[str, Any]) -> OwnedPod:
    return owned_pod(manifest, view_pod(manifest))


def _service(manifest: Mapping[str, Any]) -> Owned:
    metadata = manifest["metadata"]
    return Owned(metadata["name"], controller_uid(manifest), uid=metadata["uid"])


def _config(manifest: Mapping[str, Any]) -> Owned:
    # Anybody may make a ConfigMap of a megabyte with the two labels: keep a digest, and hash those of jobs alone.
    metadata, owner = manifest["metadata"], controller_uid(manifest)
    digest = data_digest(manifest.get("data") or {}) if owner else ""
    return Owned(metadata["name"], owner, digest, metadata["uid"])
