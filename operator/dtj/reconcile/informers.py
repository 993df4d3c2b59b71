"""Caches of jobs and of the objects that the operator creates for jobs, with the fields that a pass reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from sys import intern
from typing import Any

from dtj.api.identity import API_VERSION, KIND, LABEL_JOB, LABEL_MANAGED_BY, LABEL_RECORD, MANAGER
from dtj.api.mpijob import QUEUE_ANNOTATIONS, QUEUE_LABELS
from dtj.cluster.port import Selection, Source
from dtj.reconcile.informer import Cache, Informer
from dtj.reconcile.record import view_record
from dtj.reconcile.stuck import Stuck
from dtj.reconcile.tensorboard import view_deployment
from dtj.reconcile.urgency import PodUrgency
from dtj.reconcile.view import CachedJob, Key, Owned, OwnedPod, controller_uid, owned_pod
from dtj.status.pods import view_pod

# The API server applies this label selector, so the operator receives no objects of other owners.
_OURS = f"{LABEL_MANAGED_BY}={MANAGER},{LABEL_JOB}"
_RECORDS = f"{LABEL_MANAGED_BY}={MANAGER},{LABEL_RECORD}"
_METADATA = (
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
)


class Informers:
    """A cache for each kind, with an informer for each namespace. The caller must call `stop` at the end."""

    def __init__(
        self,
        source: Source,
        namespaces: Sequence[str],
        changed: Callable[[Key], None],
        changed_little: Callable[[Key], None],
        job_changed: Callable[[Key], None],
    ) -> None:
        """namespaces: the namespaces to watch; empty for all namespaces.
        changed: called with each job of which an object changed.
        changed_little: called instead of `changed` when the change is not urgent.
        job_changed: called with each job that was created, changed, or deleted.
        """
        calls = changed, changed_little
        self.jobs = Cache(_job, job_changed, key=_own_key)
        self.pods = Cache(_pod, *calls, PodUrgency())
        self.services = Cache(_service, *calls)
        self.configs = Cache(_config, *calls)
        self.deployments = Cache(view_deployment, *calls)
        self.records = Cache(view_record, *calls, key=_recorded_key)
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
        every = chain.from_iterable(self._informers.values())
        self._tasks = [asyncio.create_task(informer.run()) for informer in every]

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

    def check(self) -> int:
        """Return the number of cached objects. Raises Stuck when an informer has ended."""
        if any(task.done() for task in self._tasks):
            raise Stuck("a watch of jobs or their objects ended")
        return sum(map(len, self._caches))


def _own_key(manifest: Mapping[str, Any]) -> Key:
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def _recorded_key(manifest: Mapping[str, Any]) -> Key:
    return manifest["metadata"]["namespace"], manifest["metadata"]["labels"][LABEL_RECORD]


def _job(manifest: Mapping[str, Any]) -> CachedJob:
    # Drop managedFields, about half of a job, and the labels and annotations that the operator does not read.
    of_job = manifest["metadata"]
    metadata: dict[str, Any] = {field: of_job.get(field) for field in _METADATA}
    for kind, names in (("labels", QUEUE_LABELS), ("annotations", QUEUE_ANNOTATIONS)):
        given = of_job.get(kind) or {}
        metadata[kind] = {name: given[name] for name in names if name in given}
    parts = {part: manifest.get(part) or {} for part in ("spec", "status")}
    return CachedJob(of_job["uid"], of_job["resourceVersion"], {"metadata": metadata, **parts})


def _pod(manifest: Mapping[str, Any]) -> OwnedPod:
    return owned_pod(manifest, view_pod(manifest))


def _service(manifest: Mapping[str, Any]) -> Owned:
    metadata = manifest["metadata"]
    return Owned(metadata["name"], controller_uid(manifest), uid=metadata["uid"])


def _config(manifest: Mapping[str, Any]) -> Owned:
    # Intern the texts: many jobs share a text, and the process keeps each text once.
    metadata, data = manifest["metadata"], manifest.get("data") or {}
    texts = {key: intern(text) for key, text in data.items()}
    return Owned(metadata["name"], controller_uid(manifest), texts, metadata["uid"])
