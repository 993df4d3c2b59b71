"""The connection to the API server for one Lease: slow, lossy or cut on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError
from tests.unit.support.fake_cluster import FakeCluster


class LeaseApi:
    """A request whose client stops waiting still arrives, perhaps late."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.requests: list[str] = []
        """Verbs of the requests that were sent."""
        self.delay: Callable[[], float] = lambda: 0.0
        """Returns the delay in seconds of the next message, request or answer."""
        self.away = False
        """Whether connections are refused."""
        self.lossy: Callable[[], bool] = lambda: False
        """Returns whether the next answer is lost."""

    @property
    def lease(self) -> Manifest | None:
        leases = self.cluster.of_kind("Lease")
        return leases[0] if leases else None

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""

    async def get(self, manifest: Manifest) -> Manifest | None:
        return await self._ask("get", lambda: self.cluster.get(manifest))

    async def create(self, manifest: Manifest) -> Manifest | None:
        return await self._ask("create", lambda: self.cluster.create(manifest))

    async def replace(self, manifest: Manifest) -> Manifest | None:
        return await self._ask("replace", lambda: self.cluster.replace(manifest))

    async def _ask(self, verb: str, do: Callable[[], Awaitable[Manifest | None]]) -> Manifest | None:
        if self.away:
            raise ApiError(0, "Unreachable", "the connection is refused")
        self.requests.append(verb)
        task = asyncio.ensure_future(self._carry_out(do))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _carry_out(self, do: Callable[[], Awaitable[Manifest | None]]) -> Manifest | None:
        await asyncio.sleep(self.delay())
        try:
            return await do()
        finally:
            await asyncio.sleep(self.delay())
            if self.lossy():
                raise ApiError(0, "Unreachable", "the connection broke")


class Link:
    """A candidate's connection to the API server, which may be cut."""

    def __init__(self, server: LeaseApi) -> None:
        self.cut = False
        self._server = server

    async def get(self, manifest: Manifest) -> Manifest | None:
        return await self._reached().get(manifest)

    async def create(self, manifest: Manifest) -> Manifest | None:
        return await self._reached().create(manifest)

    async def replace(self, manifest: Manifest) -> Manifest | None:
        return await self._reached().replace(manifest)

    def _reached(self) -> LeaseApi:
        if self.cut:
            raise ApiError(0, "Unreachable", "the connection is refused")
        return self._server
