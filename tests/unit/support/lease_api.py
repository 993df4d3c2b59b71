"""The API server as far as one lease goes: strict about versions, and slow, lossy or away on demand."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable

from dtj.api.job import Manifest
from dtj.cluster.port import ApiError


class LeaseApi:
    """Who gives up waiting for an answer has asked all the same: the request arrives, maybe late."""

    def __init__(self) -> None:
        self.lease: Manifest | None = None
        self.requests: list[str] = []
        """Verbs of those that were sent."""
        self.delay: Callable[[], float] = lambda: 0.0
        """Seconds that the next message, request or answer, is under way."""
        self.away = False
        """Connections are refused."""
        self.lossy: Callable[[], bool] = lambda: False
        """Whether the next answer gets lost."""
        self._version = 0

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""

    async def get(self, manifest: Manifest) -> Manifest | None:
        return await self._ask("get", lambda: copy.deepcopy(self.lease))

    async def create(self, manifest: Manifest) -> Manifest | None:
        return await self._ask("create", lambda: self._create(manifest))

    async def replace(self, manifest: Manifest) -> Manifest | None:
        return await self._ask("replace", lambda: self._replace(manifest))

    async def _ask(self, verb: str, do: Callable[[], Manifest | None]) -> Manifest | None:
        if self.away:
            raise ApiError(0, "Unreachable", "the connection is refused")
        self.requests.append(verb)
        task = asyncio.ensure_future(self._carry_out(do))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _carry_out(self, do: Callable[[], Manifest | None]) -> Manifest | None:
        await asyncio.sleep(self.delay())
        try:
            return do()
        finally:
            await asyncio.sleep(self.delay())
            if self.lossy():
                raise ApiError(0, "Unreachable", "the connection broke")

    def _create(self, manifest: Manifest) -> Manifest:
        if self.lease is not None:
            raise ApiError(409, "AlreadyExists", "it is there")
        return self._store(manifest)

    def _replace(self, manifest: Manifest) -> Manifest:
        if self.lease is None:
            raise ApiError(404, "NotFound", "it is not there")
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self._store(manifest)

    def _store(self, manifest: Manifest) -> Manifest:
        self._version += 1
        metadata = manifest["metadata"] | {"resourceVersion": str(self._version)}
        self.lease = copy.deepcopy(manifest | {"metadata": metadata})
        return copy.deepcopy(self.lease)


class Link:
    """One candidate's way to the API server, which may be cut."""

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
