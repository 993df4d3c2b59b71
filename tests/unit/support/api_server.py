"""An API server on loopback that speaks HTTP: what the client asks of a real one, with faults on demand."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from dtj.api.identity import API_VERSION, KIND, PLURAL
from dtj.api.job import Manifest
from dtj.reconcile.patch import merged

JOBS = f"/apis/{API_VERSION}/namespaces/{{namespace}}/{PLURAL}"
CORE = "/api/v1/namespaces/{namespace}"
TOKEN = "a-token"


@dataclass
class ApiServer:
    """Jobs, pods, logs, events and Secrets of one namespace, `ml`."""

    jobs: dict[str, Manifest] = field(default_factory=dict)
    pods: dict[str, Manifest] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    """Lines by pod, each with its time; a follower gets what is appended, until the pod's container has ended."""
    events: list[Manifest] = field(default_factory=list)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    refusals: dict[tuple[str, str], list[tuple[int, str, str]]] = field(default_factory=dict)
    """Status, reason and message of the next answers, by method and resource (distributedtrainingjobs, log)."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method, and path with query."""
    user_agents: set[str] = field(default_factory=set)
    """Of all requests."""
    patches: list[Manifest] = field(default_factory=list)
    log_cut_after: int | None = None
    """How many lines a log's reader gets before the connection breaks; once."""
    tokens: set[str] = field(default_factory=lambda: {TOKEN})
    installed: bool = True
    url: str = ""
    _history: list[tuple[int, str, Manifest]] = field(default_factory=list)
    _oldest: int = 0
    _version: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _watches: list[web.Request] = field(default_factory=list)

    @property
    def watched(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    async def put(self, manifest: Manifest) -> Manifest:
        """Make a job, or change it."""
        name = manifest["metadata"]["name"]
        kind = "MODIFIED" if name in self.jobs else "ADDED"
        return await self._store(kind, manifest)

    async def status(self, name: str, **status: Any) -> None:
        """Change a job's status, as the operator does."""
        await self.put(merged(self.jobs[name], {"status": status}))

    async def delete(self, name: str) -> None:
        """Delete a job and, as the garbage collector does, its pods."""
        await self._store("DELETED", self.jobs[name])
        del self.jobs[name]
        self.pods.clear()

    async def print(self, pod: str, *lines: str) -> None:
        """A pod prints."""
        self.logs.setdefault(pod, []).extend(lines)
        await self.tell()

    async def tell(self) -> None:
        """Let watches and followers look again."""
        async with self._changed:
            self._changed.notify_all()

    def cut(self) -> None:
        """Break every watch's connection in the middle."""
        for request in list(self._watches):
            assert request.transport is not None
            request.transport.abort()

    def forget(self) -> None:
        """Forget the changes up to now: a watch from an older version is told 410."""
        self._version += 1
        self._oldest = self._version

    async def _store(self, kind: str, manifest: Manifest) -> Manifest:
        self._version += 1
        metadata = manifest["metadata"] | {"resourceVersion": str(self._version)}
        manifest = manifest | {"metadata": metadata}
        self.jobs[metadata["name"]] = manifest
        self._history.append((self._version, kind, manifest))
        await self.tell()
        return manifest

    # --- HTTP -----------------------------------------------------------------------------------

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._check])
        app.router.add_get(JOBS, self._list_jobs)
        app.router.add_get(f"/apis/{API_VERSION}/{PLURAL}", self._list_jobs)
        app.router.add_post(JOBS, self._create)
        app.router.add_get(JOBS + "/{name}", self._get)
        app.router.add_patch(JOBS + "/{name}", self._patch)
        app.router.add_delete(JOBS + "/{name}", self._delete)
        app.router.add_get(CORE + "/pods", self._list_pods)
        app.router.add_get(CORE + "/pods/{name}/log", self._log)
        app.router.add_get(CORE + "/events", self._list_events)
        app.router.add_get(CORE + "/secrets/{name}", self._secret)
        return app

    @web.middleware
    async def _check(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        self.user_agents.add(request.headers.get("User-Agent", ""))
        resource = request.path.rsplit("/", 1)[-1]
        if resource not in (PLURAL, "pods", "log", "events"):
            resource = request.path.rsplit("/", 2)[-2]
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            return refused(401, "Unauthorized", "Unauthorized")
        if waiting := self.refusals.get((request.method, resource)):
            return refused(*waiting.pop(0))
        if not self.installed and request.path.startswith("/apis"):
            return web.Response(status=404, text="404 page not found\n")
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _list_jobs(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        if request.query.get("watch"):
            return await self._watch(request, name)
        jobs = [job for key, job in self.jobs.items() if name in ("", key)]
        # As the server: no more than `limit`, and where to go on.
        start, limit = int(request.query.get("continue") or 0), int(request.query["limit"])
        metadata = {"resourceVersion": str(self._version)}
        if len(jobs) > start + limit:
            metadata["continue"] = str(start + limit)
        return web.json_response({"metadata": metadata, "items": jobs[start : start + limit]})

    async def _watch(self, request: web.Request, name: str) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        self._watches.append(request)
        try:
            while True:
                if version < self._oldest:
                    gone = {"code": 410, "reason": "Expired", "message": "too old resource version"}
                    await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                    return response
                for number, kind, manifest in self._history:
                    if number > version and manifest["metadata"]["name"] == name:
                        line = json.dumps({"type": kind, "object": manifest}).encode() + b"\n"
                        # In two pieces, as a network may.
                        await response.write(line[:20])
                        await response.write(line[20:])
                version = self._version
                async with self._changed:
                    await self._changed.wait()
        finally:
            self._watches.remove(request)

    async def _create(self, request: web.Request) -> web.Response:
        manifest = await request.json()
        name = manifest["metadata"]["name"]
        if name in self.jobs:
            return refused(409, "AlreadyExists", f'{PLURAL}.dtj.dev "{name}" already exists')
        given = {"uid": f"uid-of-{name}", "generation": 1, "creationTimestamp": "2026-11-21T12:00:00Z"}
        return web.json_response(
            await self.put(manifest | {"metadata": manifest["metadata"] | given}), status=201
        )

    async def _get(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["name"])
        return web.json_response(job) if job else self._missing(request)

    async def _patch(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/merge-patch+json"
        name = request.match_info["name"]
        if name not in self.jobs:
            return self._missing(request)
        patch = json.loads(await request.read())
        self.patches.append(patch)
        job = merged(self.jobs[name], patch)
        job["metadata"]["generation"] += 1
        return web.json_response(await self.put(job))

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.jobs:
            return self._missing(request)
        wanted = (await request.json()).get("preconditions", {})
        metadata = self.jobs[name]["metadata"]
        if any(metadata[key] != value for key, value in wanted.items()):
            return refused(409, "Conflict", "the preconditions do not hold")
        await self.delete(name)
        return web.json_response({"kind": "Status", "status": "Success"})

    def _missing(self, request: web.Request) -> web.Response:
        return refused(404, "NotFound", f'{PLURAL}.dtj.dev "{request.match_info["name"]}" not found')

    async def _list_pods(self, request: web.Request) -> web.Response:
        return web.json_response({"metadata": {}, "items": list(self.pods.values())})

    async def _list_events(self, request: web.Request) -> web.Response:
        return web.json_response({"metadata": {}, "items": self.events})

    async def _secret(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.secrets:
            return refused(404, "NotFound", f'secrets "{name}" not found')
        data = {key: base64.b64encode(value.encode()).decode() for key, value in self.secrets[name].items()}
        return web.json_response({"data": data})

    async def _log(self, request: web.Request) -> web.StreamResponse:
        pod = request.match_info["name"]
        if pod not in self.pods:
            return refused(404, "NotFound", f'pods "{pod}" not found')
        uid = self.pods[pod]["metadata"]["uid"]
        since = request.query.get("sinceTime", "")
        lines = self.logs.setdefault(pod, [])
        start = len(lines) - int(request.query["tailLines"]) if "tailLines" in request.query else 0
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        done = max(start, 0)
        while True:
            while done < len(lines):
                line, done = lines[done], done + 1
                # Whole seconds, as the kubelet's.
                if line[:19] < since[:19]:
                    continue
                await response.write(line.encode() + b"\n")
                if self.log_cut_after is not None and done >= self.log_cut_after:
                    self.log_cut_after = None
                    assert request.transport is not None
                    request.transport.abort()
                    return response
            now = self.pods.get(pod)
            ended = now is None or now["metadata"]["uid"] != uid or now["status"]["phase"] != "Running"
            if "follow" not in request.query or ended:
                return response
            async with self._changed:
                await self._changed.wait()


def refused(status: int, reason: str, message: str) -> web.Response:
    """A Status, as every refusal of the API server."""
    return web.json_response({"kind": "Status", "reason": reason, "message": message}, status=status)


@asynccontextmanager
async def serving(server: ApiServer) -> AsyncIterator[ApiServer]:
    """Serve on a free port."""
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


async def until(there: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(seconds):
        while not there():
            await asyncio.sleep(0.01)


def write_kubeconfig(path: Path, url: str, token: str = TOKEN) -> None:
    """A kubeconfig with two contexts: `ml`, the current one, in namespace ml, and `bare` without a namespace."""
    contexts = {"ml": {"cluster": "c", "user": "u", "namespace": "ml"}, "bare": {"cluster": "c", "user": "u"}}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "ml",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": name, "context": context} for name, context in contexts.items()],
    }
    path.write_text(yaml.safe_dump(content))


def stored(name: str = "mnist", **spec: Any) -> Manifest:
    """A job as the API server has it."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-of-{name}",
            "generation": 1,
            "creationTimestamp": "2026-11-21T12:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {
            "strategy": "Horovod",
            "image": "trainer:1",
            "command": ["python", "train.py"],
            "replicaSpecs": {"worker": {"replicas": 2}},
            **spec,
        },
    }


def pod(name: str, *, uid: str = "", phase: str = "Running", attempt: int = 1) -> Manifest:
    """A pod of a job, `<job>-<role>-<index>`."""
    job, role, index = name.rsplit("-", 2)
    labels = {
        "dtj.dev/job": job,
        "dtj.dev/role": role,
        "dtj.dev/index": index,
        "dtj.dev/attempt": str(attempt),
    }
    state = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": int(phase == "Failed")}}
    return {
        "metadata": {"name": name, "uid": uid or f"{name}-{attempt}", "labels": labels},
        "spec": {"nodeName": "node-1"},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "trainer", "state": state}] if phase != "Pending" else [],
        },
    }
