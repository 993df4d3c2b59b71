"""A client that makes the same API requests as the operator until a job runs, and nothing else.

The speed of the client is the limit for any operator with these requests, on a machine that also serves the requests.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from dtj.api.identity import API_VERSION, KIND, LABEL_JOB
from tests.bench.api_client import ApiClient, Manifest
from tests.bench.jobs import collection, jobs_path, objects, pods_in


class SameRequests:
    """Makes each job that comes what the operator would, in the same order, so many jobs at a time."""

    def __init__(
        self, api: ApiClient, namespace: str, strategy: str, at_once: int, tasks: asyncio.TaskGroup
    ) -> None:
        self._api = api
        self._tasks = tasks
        self._namespace = namespace
        self._strategy = strategy
        self._pods = pods_in(strategy)
        self._hands = asyncio.Semaphore(at_once)
        self._ready: dict[str, set[str]] = defaultdict(set)
        self._changed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def follow(self, since: str) -> None:
        """Take up the jobs that come after that version."""
        async for kind, manifest in self._api.watch(jobs_path(self._namespace), since):
            if kind == "ADDED":
                self._tasks.create_task(self._run(manifest["metadata"]["name"]))

    async def follow_pods(self, since: str) -> None:
        """See which run, of those that come after that version."""
        async for _, manifest in self._api.watch(collection(self._namespace, "Pod"), since):
            if (manifest.get("status") or {}).get("phase") == "Running":
                name = manifest["metadata"]["labels"][LABEL_JOB]
                self._ready[name].add(manifest["metadata"]["name"])
                self._changed[name].set()

    async def follow_others(self, kind: str) -> None:
        """Have the API server tell what the operator is told too."""
        async for _ in self._api.watch(collection(self._namespace, kind)):
            pass

    async def _run(self, name: str) -> None:
        made = objects(name, self._namespace, self._strategy)
        *first, last = [one | {"metadata": _labelled(one, name)} for one in made]
        async with self._hands:
            await self._say(name, "Pending")
            await self._make(*first)
        # The launcher, or the chief, is made when the others run.
        await self._running(name, self._pods - 1)
        async with self._hands:
            await self._make(last)
        await self._running(name, self._pods)
        async with self._hands:
            await self._say(name, "Running")
            await self._api.create(
                f"/api/v1/namespaces/{self._namespace}/events", bare_event(name, self._namespace)
            )

    async def _running(self, name: str, pods: int) -> None:
        while len(self._ready[name]) < pods:
            await self._changed[name].wait()
            self._changed[name].clear()

    async def _make(self, *manifests: Manifest) -> None:
        for manifest in manifests:
            await self._api.create(collection(self._namespace, manifest["kind"]), manifest)

    async def _say(self, name: str, phase: str) -> None:
        await self._api.merge(f"{jobs_path(self._namespace)}/{name}/status", {"status": bare_status(phase)})


def bare_event(job: str, namespace: str) -> Manifest:
    """As long as the operator's."""
    about = {"apiVersion": API_VERSION, "kind": KIND, "name": job, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job}.running", "namespace": namespace},
        "involvedObject": about,
        "reason": "JobRunning",
        "message": "All pods run.",
        "type": "Normal",
    }


def _labelled(manifest: Manifest, name: str) -> Manifest:
    return {"name": manifest["metadata"]["name"], "labels": {LABEL_JOB: name}}


def bare_status(phase: str) -> dict[str, Any]:
    """As long as the operator's."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    counts = {"desired": 2, "active": 2, "ready": 2, "succeeded": 0, "failed": 0}
    told = {"status": "True", "reason": "JobRunning", "message": "All pods run.", "lastTransitionTime": now}
    return {
        "phase": phase,
        "attempt": 1,
        "observedGeneration": 1,
        "startTime": now,
        "conditions": [{"type": kind, **told} for kind in ("Created", "Running")],
        "replicaStatuses": {"worker": counts},
    }


@asynccontextmanager
async def same_requests(api: ApiClient, namespace: str, strategy: str, at_once: int) -> AsyncIterator[None]:
    """It looks after the namespace's jobs for as long as the block lasts, by the operator's watches."""
    jobs_since = await api.version(jobs_path(namespace))
    pods_since = await api.version(collection(namespace, "Pod"))
    async with asyncio.TaskGroup() as tasks:
        client = SameRequests(api, namespace, strategy, at_once, tasks)
        others = map(client.follow_others, ("Service", "ConfigMap"))
        followed = (client.follow(jobs_since), client.follow_pods(pods_since), *others)
        watches = [tasks.create_task(watch) for watch in followed]
        yield
        for watch in watches:
            watch.cancel()
