"""What the operator makes of jobs, as far as a pass looks at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from sys import intern
from typing import Any

from dtj.api.identity import LABEL_JOB, LABEL_MANAGED_BY, MANAGER
from dtj.cluster.port import Selection, Source
from dtj.reconcile.informer import Cache, Informer
from dtj.reconcile.stuck import Stuck
from dtj.reconcile.tensorboard import view_deployment
from dtj.reconcile.urgency import PodUrgency
from dtj.reconcile.view import Key, Owned, OwnedPod, controller_uid, owned_pod
from dtj.status.pods import view_pod

# The API server selects: other people's pods never reach the operator.
_OURS = f"{LABEL_MANAGED_BY}={MANAGER},{LABEL_JOB}"


class Informers:
    """Caches of them, each filled and kept by informers. Stop it when done."""

    def __init__(
        self,
        source: Source,
        namespaces: Sequence[str],
        changed: Callable[[Key], None],
        changed_little: Callable[[Key], None],
    ) -> None:
        """namespaces: those to look at; none: all. changed: told each job of which something changed.
        changed_little: told in its place where no pass is urgent for that.
        """
        told = changed, changed_little
        self.pods = Cache(_pod, *told, PodUrgency())
        self.services = Cache(_service, *told)
        self.configs = Cache(_config, *told)
        self.deployments = Cache(view_deployment, *told)
        caches: Mapping[tuple[str, str], Cache[Any]] = {
            ("v1", "Pod"): self.pods,
            ("v1", "Service"): self.services,
            ("v1", "ConfigMap"): self.configs,
            ("apps/v1", "Deployment"): self.deployments,
        }
        self._informers = [
            Informer(source, Selection(*kind, _OURS, namespace), cache)
            for kind, cache in caches.items()
            for namespace in namespaces or (None,)
        ]
        self._caches = caches.values()
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        """Begin to look."""
        self._tasks = [asyncio.create_task(informer.run()) for informer in self._informers]

    async def synced(self) -> None:
        """Wait until all that was there is known."""
        for informer in self._informers:
            await informer.synced.wait()

    async def stop(self) -> None:
        """Look no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> int:
        """How many there are. Raises Stuck."""
        if any(task.done() for task in self._tasks):
            raise Stuck("jobs' objects are looked at no more")
        return sum(map(len, self._caches))


def _pod(manifest: Mapping[str, Any]) -> OwnedPod:
    return owned_pod(manifest, view_pod(manifest))


def _service(manifest: Mapping[str, Any]) -> Owned:
    metadata = manifest["metadata"]
    return Owned(metadata["name"], controller_uid(manifest), uid=metadata["uid"])


def _config(manifest: Mapping[str, Any]) -> Owned:
    # What is the same in all jobs is kept once.
    metadata, data = manifest["metadata"], manifest.get("data") or {}
    texts = {key: intern(text) for key, text in data.items()}
    return Owned(metadata["name"], controller_uid(manifest), texts, metadata["uid"])
