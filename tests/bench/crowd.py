"""The jobs of one namespace: creation, watch, end and deletion."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from tests.bench.api_client import ApiClient
from tests.bench.jobs import collection, collections, decisive, job, jobs_path, objects, pods_in
from tests.bench.operator_process import until
from tests.bench.pod_mover import Delays, PodMover
from tests.bench.seen import Seen, watching

_AT_ONCE = 32
"""Requests of the benchmark at a time, as of many people that apply jobs."""
_WAIT_SECONDS = 60.0
_WAIT_SECONDS_A_JOB = 0.5
_EVERY_SECONDS = 0.02


class Crowd:
    """Jobs in the hands of the operator and of a mover of their pods."""

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        strategy: str,
        names: Sequence[str],
        seen: Seen,
        mover: PodMover,
        every: float = _EVERY_SECONDS,
    ) -> None:
        """every: seconds between two looks at whether what is waited for has come."""
        self.names = names
        self._every = every
        self.seen = seen
        self._api = api
        self._namespace = namespace
        self._strategy = strategy
        self._pods = pods_in(strategy)
        self._mover = mover
        self._seconds = _WAIT_SECONDS + _WAIT_SECONDS_A_JOB * len(names)

    async def apply(self) -> dict[str, float]:
        """Create the jobs as fast as the server takes them; when each was sent."""
        return await self._each(
            lambda name: self._api.create(
                jobs_path(self._namespace), job(name, self._namespace, self._strategy)
            )
        )

    async def succeed(self) -> dict[str, float]:
        """End the pods whose success is the jobs'; when each was told to."""
        return await self._each(lambda name: self._mover.succeed(decisive(name, self._strategy)))

    async def made(self) -> dict[str, float]:
        """Wait until the jobs have all of their pods; when each had."""
        await self._until("all pods", lambda: all(self._made(name) for name in self.names))
        return {name: self._made(name) or 0.0 for name in self.names}

    async def phase(self, phase: str) -> dict[str, float]:
        """Wait until each was in a phase; when each was first."""
        seen = self.seen.phases
        await self._until(f"phase {phase}", lambda: all(phase in seen[name] for name in self.names))
        return {name: seen[name][phase] for name in self.names}

    async def ended_pods(self) -> None:
        """Wait until nothing of the jobs is left but what succeeded."""
        await self._until(
            "the ends of the pods", lambda: all(len(self.seen.there[n]) <= 1 for n in self.names)
        )

    async def delete(self) -> None:
        """Delete the jobs, and as the garbage collector does, what the operator made of them."""
        paths = [f"{jobs_path(self._namespace)}/{name}" for name in self.names]
        for name in self.names:
            made = objects(name, self._namespace, self._strategy)
            paths += [f"{collection(self._namespace, o['kind'])}/{o['metadata']['name']}" for o in made]
        await at_once(paths, lambda path: self._api.delete(path, gracePeriodSeconds=0))

    def _made(self, name: str) -> float | None:
        return self.seen.made(name, self._pods)

    async def _until(self, what: str, there: Callable[[], bool]) -> None:
        def look() -> bool:
            self._mover.check()
            self.seen.check()
            return there()

        await until(f"{what} of {len(self.names)} jobs", look, self._seconds, self._every)

    async def _each(self, do: Callable[[str], Awaitable[None]]) -> dict[str, float]:
        times: dict[str, float] = {}

        async def timed(name: str) -> None:
            times[name] = time.perf_counter()
            await do(name)

        await at_once(self.names, timed)
        return times


async def at_once(names: Iterable[str], do: Callable[[str], Awaitable[None]], most: int = _AT_ONCE) -> None:
    """Do it for each, some at a time."""
    left = iter(names)

    async def work() -> None:
        for name in left:
            await do(name)

    await asyncio.gather(*(work() for _ in range(most)))


@asynccontextmanager
async def crowd(
    api: ApiClient, namespace: str, strategy: str, names: Sequence[str], delays: Delays | None
) -> AsyncIterator[Crowd]:
    """These jobs, of which none need be there yet, watched for as long as the block lasts."""
    mover = PodMover(api, namespace, delays, random.Random(1))
    async with watching(api, namespace, mover) as seen:
        yield Crowd(api, namespace, strategy, names, seen, mover)


@asynccontextmanager
async def namespace(api: ApiClient, name: str) -> AsyncIterator[str]:
    """A namespace; what is in it after the block is deleted. The namespace stays: nobody would end it here."""
    await api.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    yield name
    for path in collections(name):
        await api.delete(path, gracePeriodSeconds=0)
    services = collection(name, "Service")
    await at_once(await api.names(services), lambda service: api.delete(f"{services}/{service}"))
