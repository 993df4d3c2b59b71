"""A minimal asyncio client of the API server, JSON over aiohttp, for the reference measurements."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from tests.bench.control_plane import ControlPlane
from tests.cluster.progress import ClusterError

Manifest = dict[str, Any]
# An API server that has gigabytes of large objects takes minutes for another one.
_TIMEOUT = aiohttp.ClientTimeout(total=600.0)
_FOR_EVER = aiohttp.ClientTimeout(total=None)
_MERGE = "application/merge-patch+json"


class ApiClient:
    """Requests with one user's token; use it in an `async with`."""

    def __init__(self, url: str, authority: Path, token: str) -> None:
        self._url = url
        self._ssl = ssl.create_default_context(cafile=str(authority))
        self._headers = {"Authorization": f"Bearer {token}"}
        self.writes = 0
        """How many requests were made that change something."""

    @classmethod
    def as_admin(cls, plane: ControlPlane) -> ApiClient:
        """With every right."""
        return cls(plane.url, plane.authority, plane.admin_token)

    @classmethod
    def as_operator(cls, plane: ControlPlane) -> ApiClient:
        """With the operator's rights, and its share of the server."""
        return cls(plane.url, plane.authority, plane.operator_token)

    async def __aenter__(self) -> ApiClient:
        connector = aiohttp.TCPConnector(ssl=self._ssl, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=_TIMEOUT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def create(self, path: str, manifest: Manifest) -> None:
        """Make an object."""
        await self._write("POST", path, manifest)

    async def merge(self, path: str, patch: Manifest) -> None:
        """Merge a patch into an object."""
        await self._write("PATCH", path, patch, _MERGE)

    async def delete(self, path: str, **options: Any) -> None:
        """Delete an object, or all of a collection; what is gone is no error."""
        await self._write("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options}, fine=404)

    async def text(self, path: str) -> str:
        """What a GET answers."""
        async with self._session.get(self._url + path) as answer:
            return await answer.text()

    async def names(self, path: str) -> list[str]:
        """The names of a collection's objects."""
        listed = json.loads(await self.text(path))
        return [item["metadata"]["name"] for item in listed["items"]]

    async def version(self, path: str) -> str:
        """Of a collection, now."""
        return str(json.loads(await self.text(f"{path}?limit=1"))["metadata"]["resourceVersion"])

    async def watch(self, path: str, version: str | None = None) -> AsyncIterator[tuple[str, Manifest]]:
        """Every change of a collection since a version, or from now on: its type and the object.

        Raises ClusterError if one is missed.
        """
        version = version or await self.version(path)
        # The server ends each watch after a while, and one whose reader is slow.
        while True:
            query = f"watch=true&resourceVersion={version}"
            async with self._session.get(f"{self._url}{path}?{query}", timeout=_FOR_EVER) as answer:
                rest = b""
                async for piece in answer.content.iter_any():
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise ClusterError(f"the watch of {path} broke off: {event['object']}")
                        version = event["object"]["metadata"]["resourceVersion"]
                        yield event["type"], event["object"]

    async def _write(
        self, method: str, path: str, body: Manifest, content_type: str = "application/json", fine: int = 0
    ) -> None:
        self.writes += 1
        data = json.dumps(body).encode()
        try:
            status, said = await self._answer(method, path, data, content_type)
        except aiohttp.ServerDisconnectedError:
            # The server closed a connection that was kept; what came of the request is not known.
            fine = 409 if method == "POST" else 404 if method == "DELETE" else fine
            status, said = await self._answer(method, path, data, content_type)
        if status >= 400 and status != fine:
            raise ClusterError(f"{method} {path}: {status} {said[:500].decode(errors='replace')}")

    async def _answer(self, method: str, path: str, data: bytes, content_type: str) -> tuple[int, bytes]:
        async with self._session.request(
            method, self._url + path, data=data, headers={"Content-Type": content_type}
        ) as answer:
            return answer.status, await answer.read()
