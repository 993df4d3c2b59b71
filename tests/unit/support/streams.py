"""Long-lived answers of the API server: watches of objects, and logs of pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError
from tests.unit.support.fake_cluster import Name
from tests.unit.support.history import History
from tests.unit.support.selection import Asked

_LOOK_SECONDS = 0.02


class Watches:
    """Writes the changes of a cluster to every client that watches."""

    def __init__(self, cluster: History, written: Callable[[Manifest], str]) -> None:
        """written: the JSON of an event."""
        self._cluster = cluster
        self._written = written
        self._open: list[web.Request] = []

    def __len__(self) -> int:
        return len(self._open)

    def cut(self) -> int:
        """Break the connection of every watch; returns how many there were."""
        watches = list(self._open)
        for request in watches:
            abort(request)
        return len(watches)

    async def serve(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        """Write every change since the client's version, until the client goes or the version is too old."""
        version, position = int(request.query["resourceVersion"]), 0
        accept = request.headers.get("Accept", "")
        response = await _begun(request)
        self._open.append(request)
        try:
            while version >= self._cluster.oldest:
                while position < len(self._cluster.history):
                    number, change, name, manifest = self._cluster.history[position]
                    position += 1
                    if number > version and asked(name, manifest):
                        told = {"type": change, "object": shown(manifest, accept)}
                        line = self._written(told).encode() + b"\n"
                        # In two pieces, as a network may deliver a line.
                        await response.write(line[:20])
                        await response.write(line[20:])
                version = max(version, self._cluster.version)
                await asyncio.sleep(_LOOK_SECONDS)
            gone = {"code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(self._written({"type": "ERROR", "object": gone}).encode() + b"\n")
        finally:
            self._open.remove(request)
        return response


class PodLogs:
    """Serves what pods print."""

    def __init__(self, cluster: History) -> None:
        self._cluster = cluster
        self.lines: dict[str, list[str]] = {}
        """By pod, each line with its time; a follower gets new lines until the pod's container has ended."""
        self.cut_after: int | None = None
        """How many lines the next reader gets before the connection breaks."""

    def print(self, pod: str, *lines: str) -> None:
        """Append lines to a pod's log."""
        self.lines.setdefault(pod, []).extend(lines)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Write the lines that the client asks for."""
        name = ("Pod", request.match_info["namespace"], request.match_info["name"])
        if name not in self._cluster.objects:
            raise ApiError(404, "NotFound", f'pods "{name[2]}" not found')
        uid = self._cluster.objects[name]["metadata"]["uid"]
        since = request.query.get("sinceTime", "")
        lines = self.lines.setdefault(name[2], [])
        done = max(len(lines) - int(request.query.get("tailLines", len(lines))), 0)
        response = await _begun(request)
        while True:
            while done < len(lines):
                line, done = lines[done], done + 1
                # The kubelet compares whole seconds.
                if line[:19] < since[:19]:
                    continue
                await response.write(line.encode() + b"\n")
                if self.cut_after is not None and done >= self.cut_after:
                    self.cut_after = None
                    abort(request)
                    return response
            if "follow" not in request.query or not self._runs(name, uid):
                return response
            await asyncio.sleep(_LOOK_SECONDS)

    def _runs(self, name: Name, uid: str) -> bool:
        pod = self._cluster.objects.get(name)
        return pod is not None and pod["metadata"]["uid"] == uid and pod["status"]["phase"] == "Running"


def shown(manifest: Manifest, accept: str) -> Manifest:
    """Return an object as a client asks for it: whole, or its metadata alone."""
    if "as=PartialObjectMetadata" not in accept:
        return manifest
    return {
        "apiVersion": "meta.k8s.io/v1",
        "kind": "PartialObjectMetadata",
        "metadata": manifest["metadata"],
    }


def abort(request: web.Request) -> None:
    """Break the connection of a request."""
    assert request.transport is not None
    request.transport.abort()


async def _begun(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response
