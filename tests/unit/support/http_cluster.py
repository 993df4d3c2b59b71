"""The API server in memory behind HTTP, with faults on demand: for the operator, kopf, the command and the SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from aiohttp import web

from dtj.api.identity import API_VERSION, KIND, LABEL_JOB
from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError
from tests.unit.support.api_answers import DISCOVERY, KINDS, RESOURCES, discovered, refused
from tests.unit.support.copies import copied
from tests.unit.support.fake_cluster import Name, apply_merge_patch, name_of
from tests.unit.support.history import History
from tests.unit.support.kubelet import Kubelet
from tests.unit.support.mpi_operator import MpiOperator
from tests.unit.support.selection import selection
from tests.unit.support.streams import PodLogs, Watches, shown

Answer = Callable[[], Awaitable[web.StreamResponse]]
Fault = Callable[[web.Request, Answer], Awaitable[web.StreamResponse]]
"""Answers a request instead of the server, which it may also call."""
_MERGE_PATCH, _JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"


@dataclass(frozen=True)
class Received:
    """A request."""

    method: str
    path: str
    """With the query."""
    token: str
    user_agent: str
    content: bytes

    @property
    def body(self) -> Any:
        """The JSON that the client sent."""
        return json.loads(self.content)

    @property
    def watches(self) -> bool:
        """Whether the request opens a watch."""
        return "watch=true" in self.path


class HttpCluster:
    """Serves a cluster."""

    def __init__(self, *, moves: bool = True) -> None:
        """moves: whether kubelet, garbage collector and mpi-operator work."""
        self.cluster = History(now=datetime.now(UTC))
        self.kubelet = Kubelet(self.cluster)
        self.mpi_operator = MpiOperator(self.cluster)
        self.logs = PodLogs(self.cluster)
        self.watches = Watches(self.cluster, self._written)
        self.moves = moves
        self.url = ""
        # What tests read.
        self.requests: list[Received] = []
        self.listed: set[str] = set()
        """Paths that were listed or watched."""
        self.waiting: set[tuple[str, str]] = set()
        """Token and method of requests that waited."""
        # What tests set.
        self.fault: Fault | None = None
        self.refusals: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
        """Status, reason and message of the next answers, by method and resource."""
        self.tokens: set[str] | None = None
        """Other tokens are answered 401; None: every client is known."""
        self.held: dict[str, str] = {}
        """By token, a part of the paths of the requests that wait."""
        self.stale: int | None = None
        """The version that lists show, except lists of one job's objects; None: the newest."""
        self.installed = True
        """Whether the API server knows the resource DistributedTrainingJob."""
        self.published: Manifest | None = None
        """The schema of the resource that the server publishes; None: it publishes none."""
        self.ahead = timedelta()
        """How far the server's clock is ahead of this machine's."""
        self.texts: dict[str, str] = {}
        """JSON that stands in place of such strings in answers: for what Python's json cannot write."""

    # --- what tests do ---------------------------------------------------------------------------------

    def set_status(self, job: str, **status: Any) -> None:
        """Change the status of a job in namespace ml, as the operator does."""

        def change(manifest: Manifest) -> None:
            manifest["status"] = apply_merge_patch(manifest.get("status"), status)

        self.cluster.change((KIND, "ml", job), change)

    def delete_job(self, name: str, namespace: str = "ml") -> None:
        """Delete a job; without a garbage collector and a kubelet, the job's pods go at once."""
        self.cluster.remove((KIND, namespace, name))
        for pod in [] if self.moves else self.cluster.of_kind("Pod"):
            metadata = pod["metadata"]
            if metadata["namespace"] == namespace and metadata.get("labels", {}).get(LABEL_JOB) == name:
                self.cluster.remove(name_of(pod))

    # --- what tests ask --------------------------------------------------------------------------------

    @property
    def jobs(self) -> dict[str, Manifest]:
        """All jobs, by name."""
        return {job["metadata"]["name"]: job for job in self.cluster.of_kind(KIND)}

    def holder(self, lease: str) -> str:
        """Who holds a Lease of dtj-system."""
        found = self.cluster.objects.get(("Lease", "dtj-system", lease), {})
        return str(found.get("spec", {}).get("holderIdentity", ""))

    @property
    def paths(self) -> list[str]:
        """Those of all requests, each with its query."""
        return [request.path for request in self.requests]

    @property
    def posts(self) -> list[tuple[str, str]]:
        """Token, and path with name, of each object that was to be created, also where one existed."""
        return [
            (request.token, f"{request.path.partition('?')[0]}/{request.body['metadata']['name']}")
            for request in self.requests
            if request.method == "POST"
        ]

    @property
    def patches(self) -> list[Any]:
        """The bodies of all patches."""
        return [request.body for request in self.requests if request.method == "PATCH"]

    @property
    def watchers(self) -> set[str]:
        """Tokens of clients that have opened a watch."""
        return {request.token for request in self.requests if request.watches}

    @property
    def user_agents(self) -> set[str]:
        """The user agents of all requests."""
        return {request.user_agent for request in self.requests}

    # --- HTTP --------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Let time pass, and pods live, a step at a time."""
        while True:
            await asyncio.sleep(0.05)
            if self.moves:
                self.kubelet.step()
                self.mpi_operator.step()
            self.cluster.now = datetime.now(UTC)

    def app(self) -> web.Application:
        """The routes of the API server."""
        app = web.Application(middlewares=[self._enter])
        app.on_response_prepare.append(self._date)
        for path in DISCOVERY:
            app.router.add_get(path, self._discover)
        app.router.add_get(f"/openapi/v3/apis/{API_VERSION}", self._publish)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}/log", self.logs.serve)
        for root, kinds in RESOURCES.items():
            everywhere = f"{root}/{{plural:{'|'.join(kinds)}}}"
            namespaced = f"{root}/namespaces/{{namespace}}/{{plural:{'|'.join(kinds)}}}"
            app.router.add_get(everywhere, self._list)
            app.router.add_get(namespaced, self._list)
            app.router.add_post(namespaced, self._create)
            app.router.add_patch(namespaced + "/{name}/status", self._patch_status)
            for path in (everywhere + "/{name}", namespaced + "/{name}"):
                app.router.add_get(path, self._get)
                app.router.add_put(path, self._replace)
                app.router.add_patch(path, self._patch)
                app.router.add_delete(path, self._delete)
        return app

    @web.middleware
    async def _enter(self, request: web.Request, handler: Any) -> web.StreamResponse:
        token, content = _token(request), await request.read()
        agent = request.headers.get("User-Agent", "")
        self.requests.append(Received(request.method, request.path_qs, token, agent, content))
        while token in self.held and self.held[token] in request.path:
            self.waiting.add((token, request.method))
            await asyncio.sleep(0.01)
        if self.fault is not None:
            return await self.fault(request, lambda: self._answer(request, handler))
        return await self._answer(request, handler)

    async def _answer(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.tokens is not None and _token(request) not in self.tokens:
            return refused(401, "Unauthorized", "Unauthorized")
        if refusals := self.refusals.get((request.method, request.match_info.get("plural", ""))):
            return refused(*refusals.pop(0))
        if not self.installed and request.path.startswith(f"/apis/{API_VERSION}"):
            return web.Response(status=404, text="404 page not found\n")
        try:
            answer: web.StreamResponse = await handler(request)
        except ApiError as error:
            return refused(error.status, error.reason, error.message, getattr(error, "details", None))
        return answer

    async def _date(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers["Date"] = format_datetime(datetime.now(UTC) + self.ahead, usegmt=True)

    def _written(self, data: Manifest) -> str:
        text = json.dumps(data)
        for word, other in self.texts.items():
            text = text.replace(json.dumps(word), other)
        return text

    def _answered(self, data: Manifest, status: int = 200) -> web.Response:
        return web.json_response(data, status=status, dumps=self._written)

    async def _discover(self, request: web.Request) -> web.Response:
        return web.json_response(discovered(request.path, installed=self.installed))

    async def _publish(self, request: web.Request) -> web.Response:
        del request
        if self.published is None:
            return web.Response(status=404, text="404 page not found\n")
        name = "dev.dtj.v1alpha1.DistributedTrainingJob"
        return web.json_response({"openapi": "3.0.0", "components": {"schemas": {name: self.published}}})

    # --- collections -------------------------------------------------------------------------------------

    async def _list(self, request: web.Request) -> web.StreamResponse:
        self.listed.add(request.path)
        asked = selection(request)
        if request.query.get("watch"):
            return await self.watches.serve(request, asked)
        version, objects = self.cluster.version, self.cluster.objects
        if self.stale is not None and f"{LABEL_JOB}=" not in request.query.get("labelSelector", ""):
            version, objects = self.stale, self.cluster.at(self.stale)
        accept = request.headers.get("Accept", "")
        items = [manifest for name, manifest in objects.items() if asked(name, manifest)]
        metadata = {"resourceVersion": str(version)}
        begin, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or len(items))
        if len(items) > begin + limit:
            metadata["continue"] = str(begin + limit)
        page = [shown(manifest, accept) for manifest in items[begin : begin + limit]]
        # A real API server answers null where it lists no metadata.
        empty = not page and "PartialObjectMetadataList" in accept
        return self._answered({"metadata": metadata, "items": None if empty else page})

    async def _create(self, request: web.Request) -> web.Response:
        manifest = await request.json()
        manifest["metadata"].setdefault("namespace", request.match_info["namespace"])
        return self._answered(self.cluster.add(manifest), 201)

    # --- objects -----------------------------------------------------------------------------------------

    def _there(self, request: web.Request) -> Manifest:
        """The object that the request names. Raises ApiError."""
        manifest = self.cluster.objects.get(_name(request))
        if manifest is None:
            raise ApiError(404, "NotFound", f'{_resource(request)} "{request.match_info["name"]}" not found')
        return manifest

    async def _get(self, request: web.Request) -> web.Response:
        manifest = copied(self._there(request))
        if not manifest["metadata"].get("namespace"):
            manifest["metadata"].pop("namespace", None)  # The API server leaves out what is empty.
        return self._answered(manifest)

    async def _replace(self, request: web.Request) -> web.Response:
        manifest = await request.json()
        _check(self._there(request), manifest["metadata"])
        return self._answered(self.cluster.change(_name(request), lambda there: there.update(manifest)))

    async def _patch(self, request: web.Request) -> web.Response:
        there, patch = self._there(request), await request.json()
        if request.content_type == _JSON_PATCH:
            return self._answered(
                self.cluster.change(_name(request), lambda manifest: _add_all(manifest, patch))
            )
        assert request.content_type == _MERGE_PATCH
        metadata = patch.get("metadata", {})
        if metadata.get("uid", there["metadata"]["uid"]) != there["metadata"]["uid"]:
            return refused(
                422, "Invalid", f'metadata.uid: Invalid value: "{metadata["uid"]}": field is immutable'
            )
        _check(there, metadata)
        return self._answered(self.cluster.change(_name(request), lambda manifest: _merge(manifest, patch)))

    async def _patch_status(self, request: web.Request) -> web.Response:
        patch = await request.json()
        _, namespace, name = _name(request)
        version = patch["metadata"]["resourceVersion"]
        changed = await self.cluster.patch_status(namespace, name, version, patch["status"])
        return self._answered(shown(changed, request.headers.get("Accept", "")))

    async def _delete(self, request: web.Request) -> web.Response:
        there, options = self._there(request), await request.json()
        _check(there, options.get("preconditions", {}))
        kind, namespace, name = _name(request)
        if kind == KIND:
            self.delete_job(name, namespace)
        elif options.get("propagationPolicy") == "Foreground":
            await self.cluster.delete_tree(there)
        elif kind == "Pod" and options.get("gracePeriodSeconds") != 0:
            self.cluster.end_pod(there)
        else:
            self.cluster.remove((kind, namespace, name))
        return web.json_response({"kind": "Status", "status": "Success"})


def _token(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


def _name(request: web.Request) -> Name:
    place = request.match_info
    return KINDS[place["plural"]], place.get("namespace", ""), place["name"]


def _resource(request: web.Request) -> str:
    """As messages of the API server name it: the plural, with the group."""
    words = request.path.strip("/").split("/")
    return ".".join([request.match_info["plural"], *words[1:2]] if words[0] == "apis" else words[-2:-1])


def _check(there: Manifest, wanted: Mapping[str, str]) -> None:
    """Raise a conflict where the client means another object, or another version of the object."""
    if (uid := wanted.get("uid", there["metadata"]["uid"])) != there["metadata"]["uid"]:
        message = f"the UID in the precondition ({uid}) does not match the UID in record"
        raise ApiError(409, "Conflict", message)
    version = there["metadata"]["resourceVersion"]
    if wanted.get("resourceVersion", version) != version:
        raise ApiError(409, "Conflict", "the object has been modified")


def _merge(manifest: Manifest, patch: Manifest) -> None:
    patched = apply_merge_patch(manifest, patch)
    manifest.clear()
    manifest.update(patched)


def _add_all(manifest: Manifest, operations: list[Manifest]) -> None:
    """Carry out the operations `add` and `replace` of a JSON patch."""
    for operation in operations:
        *above, last = operation["path"].removeprefix("/").split("/")
        place = manifest
        for name in above:
            place = place[name]
        place[last.replace("~1", "/")] = operation["value"]


@asynccontextmanager
async def http_cluster(*, moves: bool = True) -> AsyncIterator[HttpCluster]:
    """Serve a cluster on a free port. moves: as HttpCluster's."""
    server = HttpCluster(moves=moves)
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    life = asyncio.create_task(server.live())
    try:
        yield server
    finally:
        life.cancel()
        await runner.cleanup()
