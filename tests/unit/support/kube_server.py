"""An API server on loopback that keeps objects of any kind and lets them be watched: enough for kopf to run on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from aiohttp import web

from dtj.api.identity import API_VERSION, GROUP, KIND, PLURAL, VERSION
from dtj.api.job import Manifest
from dtj.reconcile.patch import merged
from tests.unit.support.api_server import refused

Place = tuple[str, str, str]
"""Plural, namespace, name."""
_CORE = {
    "namespaces": "Namespace",  # kopf waits for it, whatever is watched
    "pods": "Pod",
    "services": "Service",
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "events": "Event",
}
_VERBS = ["get", "list", "watch", "create", "update", "patch", "delete"]


@dataclass
class KubeServer:
    """Tells its clients apart by their tokens."""

    objects: dict[Place, Manifest] = field(default_factory=dict)
    posts: list[tuple[str, str]] = field(default_factory=list)
    """Token, and path, of each object that was to be made, also where one was there."""
    watchers: set[str] = field(default_factory=set)
    """Tokens of clients that watch."""
    watches: int = 0
    """How many were begun."""
    listed: set[str] = field(default_factory=set)
    """Paths that were listed or watched."""
    installed: bool = True
    """Whether it knows our resource."""
    held: dict[str, str] = field(default_factory=dict)
    """By token, what is in the paths of the requests that wait."""
    waiting: set[tuple[str, str]] = field(default_factory=set)
    """Token and method of requests that were held."""
    ahead: timedelta = timedelta()
    """How far its clock is ahead of this machine's."""
    texts: dict[str, str] = field(default_factory=dict)
    """JSON that stands in place of such strings in answers: for what Python's json can't write."""
    user_agents: set[str] = field(default_factory=set)
    """Of all requests."""
    url: str = ""
    _history: list[tuple[int, str, Place, Manifest]] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def holder(self, lease: str) -> str:
        """Who holds a lease of dtj-system."""
        return str(
            self.objects.get(("leases", "dtj-system", lease), {}).get("spec", {}).get("holderIdentity", "")
        )

    async def put(self, place: Place, manifest: Manifest, event: str = "MODIFIED") -> Manifest:
        """Store an object under the next version."""
        version = len(self._history) + 1
        metadata = {"uid": f"uid-{version}", "generation": 1} | manifest["metadata"]
        stored = manifest | {"metadata": metadata | {"resourceVersion": str(version)}}
        self.objects[place] = stored
        self._history.append((version, event, place, stored))
        async with self._changed:
            self._changed.notify_all()
        return stored

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Serve on a free port."""
        app = web.Application(middlewares=[self._enter])
        app.on_response_prepare.append(self._date)
        app.router.add_get("/version", self._discovery)
        for path in ("/api", "/apis", "/api/v1", f"/apis/{API_VERSION}"):
            app.router.add_get(path, self._discovery)
        for root in ("/api/v1", "/apis/{group}/{version}"):
            app.router.add_get(root + "/{plural}", self._list)
            collection = root + "/namespaces/{namespace}/{plural}"
            app.router.add_get(collection, self._list)
            app.router.add_post(collection, self._create)
            for path in (collection + "/{name}", collection + "/{name}/status"):
                app.router.add_route("*", path, self._item)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()

    @web.middleware
    async def _enter(self, request: web.Request, handler: Any) -> web.StreamResponse:
        token = _token(request)
        self.user_agents.add(request.headers.get("User-Agent", ""))
        while token in self.held and self.held[token] in request.path:
            self.waiting.add((token, request.method))
            await asyncio.sleep(0.01)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _date(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers["Date"] = format_datetime(datetime.now(UTC) + self.ahead, usegmt=True)

    async def _discovery(self, request: web.Request) -> web.Response:
        version = {"groupVersion": API_VERSION, "version": VERSION}
        group = {"name": GROUP, "versions": [version], "preferredVersion": version}
        job = [_resource(PLURAL, KIND)]
        answers: dict[str, Any] = {
            "/version": {"major": "1", "minor": "30"},
            "/api": {"versions": ["v1"]},
            "/apis": {"groups": [group] if self.installed else []},
            "/api/v1": {"resources": [_resource(plural, kind) for plural, kind in _CORE.items()]},
        }
        if request.path not in answers and not self.installed:
            return refused(404, "NotFound", "the server could not find the requested resource")
        return web.json_response(answers.get(request.path, {"resources": job}))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        plural, namespace = request.match_info["plural"], request.match_info.get("namespace")
        self.listed.add(request.path)

        def asked(place: Place) -> bool:
            return place[0] == plural and namespace in (None, place[1])

        if not request.query.get("watch"):
            items = [manifest for place, manifest in self.objects.items() if asked(place)]
            version = str(len(self._history))
            return self._answer({"metadata": {"resourceVersion": version}, "items": items})
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        self.watchers.add(_token(request))
        self.watches += 1
        seen = int(request.query["resourceVersion"])
        while True:
            for version, event, place, manifest in self._history[seen:]:
                if asked(place):
                    await response.write(self._written({"type": event, "object": manifest}).encode() + b"\n")
                seen = version
            async with self._changed:
                await self._changed.wait_for(lambda: len(self._history) > seen)  # noqa: B023

    async def _create(self, request: web.Request) -> web.Response:
        manifest = await request.json()
        place = (request.match_info["plural"], request.match_info["namespace"], manifest["metadata"]["name"])
        self.posts.append((_token(request), f"{request.path}/{place[2]}"))
        if place in self.objects:
            return refused(409, "AlreadyExists", f"{place[2]} already exists")
        return web.json_response(await self.put(place, manifest, "ADDED"), status=201)

    async def _item(self, request: web.Request) -> web.Response:
        place = (
            request.match_info["plural"],
            request.match_info["namespace"],
            request.match_info["name"],
        )
        there = self.objects.get(place)
        if there is None:
            return refused(404, "NotFound", f"{place[2]} not found")
        if request.method == "GET":
            return self._answer(there)
        given = json.loads(await request.read())
        version = given.get("metadata", {}).get("resourceVersion")
        if version not in (None, there["metadata"]["resourceVersion"]):
            return refused(409, "Conflict", "the object has been modified")
        new = given if request.method == "PUT" else merged(there, given)
        return self._answer(await self.put(place, new))

    def _answer(self, data: Manifest) -> web.Response:
        return web.Response(text=self._written(data), content_type="application/json")

    def _written(self, data: Manifest) -> str:
        text = json.dumps(data)
        for word, other in self.texts.items():
            text = text.replace(json.dumps(word), other)
        return text


def _token(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


def _resource(plural: str, kind: str) -> Manifest:
    return {
        "name": plural,
        "singularName": kind.lower(),
        "kind": kind,
        "namespaced": True,
        "verbs": _VERBS,
        "shortNames": [],
        "categories": [],
    }
