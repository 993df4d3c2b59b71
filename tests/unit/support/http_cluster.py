"""The API server in memory behind real HTTP, as far as the operator's process asks it, with faults on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from aiohttp import web

from dtj.api.identity import API_VERSION, GROUP, KIND, LABEL_JOB, PLURAL, VERSION
from dtj.api.job import Manifest
from dtj.api.mpijob import MPIJOB_API_VERSION, MPIJOB_KIND, MPIJOB_PLURAL
from dtj.cluster.port import ApiError
from tests.unit.support.api_server import refused
from tests.unit.support.copies import copied
from tests.unit.support.fake_cluster import FakeCluster, Kubelet, Name
from tests.unit.support.mpi_operator import MpiOperator

KINDS = {
    "pods": "Pod",
    "services": "Service",
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "events": "Event",
    "leases": "Lease",
    "podgroups": "PodGroup",
    "validatingwebhookconfigurations": "ValidatingWebhookConfiguration",
    "networkpolicies": "NetworkPolicy",
}
LEASES = "coordination.k8s.io/v1"
POD_GROUPS = ("scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1")
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/{plural}/{name}"
APPS = "apps/v1"
POLICIES = "networking.k8s.io/v1"
OTHERS = {PLURAL: KIND, MPIJOB_PLURAL: MPIJOB_KIND, "deployments": "Deployment"}
VERBS = ["create", "delete", "get", "list", "patch", "watch"]
Fault = Callable[[web.Request, Callable[[], Awaitable[web.StreamResponse]]], Awaitable[web.StreamResponse]]
"""Answers a request in the server's place; may ask the server, too."""


@dataclass
class History(FakeCluster):
    """Remembers every change with its version and what the object was, as watches tell it."""

    history: list[tuple[int, str, Name, Manifest]] = field(default_factory=list)
    version: int = 0

    def _store(self, name: Name, manifest: Manifest) -> Manifest:
        kind = "MODIFIED" if name in self.objects else "ADDED"
        stored = super()._store(name, manifest)
        self._remember(kind, name, stored)
        return stored

    def remove(self, name: Name) -> None:
        there = self.objects.get(name)
        super().remove(name)
        if there is not None:
            there["metadata"]["resourceVersion"] = self._number("")
            self._remember("DELETED", name, there)

    def _remember(self, kind: str, name: Name, manifest: Manifest) -> None:
        self.version = int(manifest["metadata"]["resourceVersion"])
        self.history.append((self.version, kind, name, copied(manifest)))

    def at(self, version: int) -> dict[Name, Manifest]:
        """What was there at a version."""
        there: dict[Name, Manifest] = {}
        for number, kind, name, manifest in self.history:
            if number > version:
                break
            there[name] = manifest
            if kind == "DELETED":
                del there[name]
        return there


class HttpCluster:
    """Serves a cluster whose pods move by themselves."""

    def __init__(self) -> None:
        self.cluster = History(now=datetime.now(UTC))
        self.kubelet = Kubelet(self.cluster)
        self.mpi_operator = MpiOperator(self.cluster)
        self.fault: Fault | None = None
        self.requests: list[tuple[float, str, str]] = []
        """Time, method and path of each."""
        self.stale: int | None = None
        """The version that lists show, but those of one job's objects; None: the newest."""
        self.oldest = 0
        """Watches from an older version are told 410."""
        self.deaf = False
        """Nobody can watch."""
        self.moves = True
        self.url = ""
        self._watches: list[web.Request] = []

    @property
    def watched(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    # --- what tests do ---------------------------------------------------------------------------------

    def cut(self) -> int:
        """Break every watch's connection; how many there were."""
        watches = list(self._watches)
        for request in watches:
            assert request.transport is not None
            request.transport.abort()
        return len(watches)

    def forget(self) -> None:
        """Forget the changes up to now, as an API server does after some minutes."""
        self.cluster._number("")
        self.oldest = self.cluster._counter

    async def live(self) -> None:
        """Let pods live, a step at a time."""
        while True:
            await asyncio.sleep(0.05)
            if self.moves:
                self.kubelet.step()
                self.mpi_operator.step()
            self.cluster.now = datetime.now(UTC)

    # --- HTTP --------------------------------------------------------------------------------------------

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._check])
        for path, known in DISCOVERY.items():
            app.router.add_get(path, partial(self._discover, known))
        app.router.add_get(WEBHOOKS, self._get)
        app.router.add_put(WEBHOOKS, self._replace)
        for root in (
            "/api/v1",
            f"/apis/{API_VERSION}",
            f"/apis/{LEASES}",
            f"/apis/{APPS}",
            f"/apis/{POLICIES}",
            f"/apis/{MPIJOB_API_VERSION}",
            *(f"/apis/{v}" for v in POD_GROUPS),
        ):
            one = root + "/namespaces/{namespace}/{plural}"
            app.router.add_get(root + "/{plural}", self._list)
            app.router.add_get(one, self._list)
            app.router.add_post(one, self._create)
            app.router.add_put(one + "/{name}", self._replace)
            app.router.add_get(one + "/{name}", self._get)
            app.router.add_patch(one + "/{name}", self._patch_data)
            app.router.add_patch(one + "/{name}/status", self._patch_status)
            app.router.add_delete(one + "/{name}", self._delete)
        return app

    async def _discover(self, known: Manifest, request: web.Request) -> web.Response:
        return web.json_response(known)

    @web.middleware
    async def _check(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((asyncio.get_running_loop().time(), request.method, request.path_qs))
        if self.fault is not None:
            return await self.fault(request, lambda: self._answer(request, handler))
        return await self._answer(request, handler)

    async def _answer(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            answer: web.StreamResponse = await handler(request)
        except ApiError as error:
            return refused(error.status, error.reason, error.message)
        return answer

    async def _list(self, request: web.Request) -> web.StreamResponse:
        kind, namespace = _kind(request), request.match_info.get("namespace")
        selector = request.query.get("labelSelector", "")

        def asked(name: Name, manifest: Manifest) -> bool:
            labels = manifest["metadata"].get("labels", {})
            return name[0] == kind and namespace in (None, name[1]) and _selected(labels, selector)

        if request.query.get("watch"):
            return await self._watch(request, asked)
        of_one_job = f"{LABEL_JOB}=" in selector
        version = self.cluster._counter if self.stale is None or of_one_job else self.stale
        items = [manifest for name, manifest in self.cluster.at(version).items() if asked(name, manifest)]
        metadata_only = "PartialObjectMetadataList" in request.headers["Accept"]
        found = {"metadata": {"resourceVersion": str(version)}, "items": items}
        # So do real ones answer.
        return web.json_response({**found, "items": None} if metadata_only and not items else found)

    async def _watch(
        self, request: web.Request, asked: Callable[[Name, Manifest], bool]
    ) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        if version < self.oldest:
            gone = {"code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        self._watches.append(request)
        try:
            while True:
                for number, change, name, manifest in self.cluster.history:
                    if number > version and asked(name, manifest):
                        line = json.dumps({"type": change, "object": manifest}).encode() + b"\n"
                        await response.write(line)
                        version = number
                await asyncio.sleep(0.02)
        finally:
            self._watches.remove(request)

    async def _create(self, request: web.Request) -> web.Response:
        return web.json_response(await self.cluster.create(await request.json()), status=201)

    def _named(self, request: web.Request, **known: str) -> Manifest:
        namespace = request.match_info.get("namespace", "")
        return {
            "kind": _kind(request),
            "metadata": {"namespace": namespace, "name": request.match_info["name"], **known},
        }

    async def _get(self, request: web.Request) -> web.Response:
        there = await self.cluster.get(self._named(request))
        if there is None:
            return refused(404, "NotFound", "not found")
        if not there["metadata"].get("namespace"):
            there["metadata"].pop("namespace", None)  # as a server, which leaves out what is empty
        return web.json_response(there)

    async def _replace(self, request: web.Request) -> web.Response:
        manifest = await request.json()

        def replace(there: Manifest) -> None:
            if there["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", "the object has been modified")
            there.update(manifest)

        place = request.match_info.get("namespace", ""), request.match_info["name"]
        return web.json_response(self.cluster.change((_kind(request), *place), replace))

    async def _patch_data(self, request: web.Request) -> web.Response:
        patch = json.loads(await request.read())
        if isinstance(patch, list):
            return web.json_response(await self.cluster.update_deployment(self._updated(request, patch)))
        return web.json_response(await self.cluster.replace_data(self._named(request) | patch))

    def _updated(self, request: web.Request, operations: list[Manifest]) -> Manifest:
        """What a JSON patch of a Deployment asks for."""
        made = self._named(request)
        made["metadata"]["annotations"], made["spec"] = {}, {}
        for operation in operations:
            *above, last = operation["path"].removeprefix("/").split("/")
            place = made
            for name in above:
                place = place[name]
            place[last.replace("~1", "/")] = operation["value"]
        return made

    async def _patch_status(self, request: web.Request) -> web.Response:
        patch = json.loads(await request.read())
        place = request.match_info["namespace"], request.match_info["name"]
        changed = await self.cluster.patch_status(
            *place, patch["metadata"]["resourceVersion"], patch["status"]
        )
        return web.json_response(changed)

    async def _delete(self, request: web.Request) -> web.Response:
        place = request.match_info["namespace"], request.match_info["name"]
        options = await request.json()
        wanted = options["preconditions"]
        if _kind(request) == KIND:
            await self.cluster.expire_job(*place, wanted["uid"], wanted["resourceVersion"])
        elif _kind(request) == "PodGroup":
            await self.cluster.delete(self._named(request), wanted["uid"])
        elif _kind(request) == MPIJOB_KIND:
            await self.cluster.delete_tree(self._named(request, uid=wanted["uid"]))
        else:
            force = options.get("gracePeriodSeconds") == 0
            await self.cluster.delete_pod(*place, wanted["uid"], force=force)
        return web.json_response({"kind": "Status", "status": "Success"})


def _selected(labels: Mapping[str, str], selector: str) -> bool:
    wanted = [requirement.partition("=") for requirement in selector.split(",") if requirement]
    return all(labels.get(key) == value if equals else key in labels for key, equals, value in wanted)


def _kind(request: web.Request) -> str:
    plural = request.match_info["plural"]
    return (KINDS | OTHERS)[plural]


def _group(name: str, version: str) -> Manifest:
    known = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [known], "preferredVersion": known}


def _resources(version: str, kinds: Mapping[str, str]) -> Manifest:
    entries = [
        {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": VERBS}
        for plural, kind in kinds.items()
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": entries}


_EXTENSIONS = "apiextensions.k8s.io"
# kopf wants to know namespaces and CRDs, though it watches none of them here.
DISCOVERY: dict[str, Manifest] = {
    "/api": {"versions": ["v1"]},
    "/apis": {"groups": [_group(GROUP, VERSION), _group("apps", "v1"), _group(_EXTENSIONS, "v1")]},
    "/api/v1": _resources("v1", {**KINDS, "namespaces": "Namespace"}),
    f"/apis/{APPS}": _resources(APPS, {"deployments": "Deployment"}),
    f"/apis/{API_VERSION}": _resources(API_VERSION, {PLURAL: KIND}),
    f"/apis/{MPIJOB_API_VERSION}": _resources(MPIJOB_API_VERSION, {MPIJOB_PLURAL: MPIJOB_KIND}),
    f"/apis/{_EXTENSIONS}/v1": _resources(
        f"{_EXTENSIONS}/v1", {"customresourcedefinitions": "CustomResourceDefinition"}
    ),
}


@asynccontextmanager
async def http_cluster() -> AsyncIterator[HttpCluster]:
    """Serve on a free port."""
    server = HttpCluster()
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
