"""A record of the jobs and pods of a namespace, with the time of each observation."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dtj.api.identity import LABEL_JOB
from tests.bench.api_client import ApiClient, Manifest
from tests.bench.jobs import collection, jobs_path
from tests.bench.pod_mover import PodMover


class Seen:
    """Times of the benchmark's own clock, as events of its watches are read."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, float]] = defaultdict(dict)
        """When each pod of a job came, by the job's name and its own."""
        self.there: dict[str, set[str]] = defaultdict(set)
        """The pods of each job that are there."""
        self.phases: dict[str, dict[str, float]] = defaultdict(dict)
        """When each job was in a phase first."""
        self.phase: dict[str, str] = {}
        """The phase of each job now."""
        self.watches: list[asyncio.Task[None]] = []

    def check(self) -> None:
        """Raise what ended a watch: nothing is seen without it."""
        for watch in self.watches:
            if watch.done():
                watch.result()

    def see_pod(self, kind: str, pod: Manifest) -> None:
        """Take note of a change of a pod."""
        name, job = pod["metadata"]["name"], pod["metadata"]["labels"][LABEL_JOB]
        if kind == "ADDED":
            self.pods[job][name] = time.perf_counter()
            self.there[job].add(name)
        elif kind == "DELETED":
            self.there[job].discard(name)

    def see_job(self, kind: str, job: Manifest) -> None:
        """Take note of a change of a job."""
        phase = (job.get("status") or {}).get("phase")
        if kind != "DELETED" and phase:
            name = job["metadata"]["name"]
            self.phase[name] = phase
            self.phases[name].setdefault(phase, time.perf_counter())

    def made(self, job: str, pods: int) -> float | None:
        """When a job had all of its pods; None before."""
        times = self.pods[job]
        return max(times.values()) if len(times) >= pods else None


@asynccontextmanager
async def watching(api: ApiClient, namespace: str, mover: PodMover) -> AsyncIterator[Seen]:
    """What happens in the namespace is seen for as long as the block lasts, and the mover is told of its pods."""
    seen = Seen()
    # Taken before the block begins: what happens in it is never before the watch.
    pods_since = await api.version(collection(namespace, "Pod"))
    jobs_since = await api.version(jobs_path(namespace))

    async def pods() -> None:
        async for kind, pod in api.watch(collection(namespace, "Pod"), pods_since):
            seen.see_pod(kind, pod)
            mover.see(kind, pod)

    async def jobs() -> None:
        async for kind, job in api.watch(jobs_path(namespace), jobs_since):
            seen.see_job(kind, job)

    seen.watches = [asyncio.create_task(pods()), asyncio.create_task(jobs())]
    try:
        yield seen
        seen.check()
    finally:
        for watch in seen.watches:
            watch.cancel()
        await asyncio.gather(*seen.watches, return_exceptions=True)
