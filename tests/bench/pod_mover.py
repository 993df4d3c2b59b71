"""The scheduler and kubelets of the benchmark: move pods through their phases, at once or at the speed of nodes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from dtj.api.pod_template import TRAINER_CONTAINER
from dtj_trainer import contract
from tests.bench.api_client import ApiClient, Manifest

POD_ADDRESS = "127.84.74.1"
"""Of every pod: loopback, where the benchmark answers for all of them."""
OTHER_ADDRESS = "127.84.74.2"
"""Of pods that say something else."""
_NODE = "bench-node"
_AT_ONCE = 64
"""Writes at a time: a pod waits for its turn, and the API server not for thousands of them."""


@dataclass(frozen=True)
class Delays:
    """Seconds between a pod's steps, drawn evenly between two bounds."""

    scheduled: tuple[float, float] = (0.02, 0.2)
    started: tuple[float, float] = (0.5, 1.5)
    ready: tuple[float, float] = (0.2, 1.0)
    ended: tuple[float, float] = (0.1, 0.5)


AT_ONCE: Delays | None = None
"""One write takes a pod from nothing to ready, and one deletes it: what is measured is the operator."""


class PodMover:
    """Takes every pod that is made to Running and Ready, and one that is told to end away."""

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        delays: Delays | None,
        rng: random.Random,
        address: str = POD_ADDRESS,
    ) -> None:
        """address: of every pod."""
        self._api = api
        self._address = address
        self._writes = asyncio.Semaphore(_AT_ONCE)
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._delays = delays
        self._rng = rng
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[str] = set()

    def see(self, kind: str, pod: Manifest) -> None:
        """Take note of a change of a pod."""
        name = pod["metadata"]["name"]
        if kind == "ADDED":
            self._begin(self._start(name))
        elif kind == "MODIFIED" and pod["metadata"].get("deletionTimestamp") and name not in self._ending:
            self._ending.add(name)
            self._begin(self._take_away(name))
        elif kind == "DELETED":
            self._ending.discard(name)

    def check(self) -> None:
        """Raise what went wrong meanwhile."""
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()

    async def succeed(self, name: str) -> None:
        """The pod's program ends well."""
        ended = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": _now()}}
        await self._say(name, "Succeeded", ended, ready=False)

    async def fail(self, name: str, message: str = "") -> None:
        """The pod's program ends with an error. message: its termination message."""
        ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": message, "finishedAt": _now()}}
        await self._say(name, "Failed", ended, ready=False)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.check()
        self._tasks.add(asyncio.create_task(work))

    async def _start(self, name: str) -> None:
        running = {"running": {"startedAt": _now()}}
        if self._delays is not None:
            await self._wait(self._delays.scheduled)
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": {"apiVersion": "v1", "kind": "Node", "name": _NODE},
            }
            await self._api.create(f"{self._pods}/{name}/binding", binding)
            await self._say(name, "Pending", {"waiting": {"reason": "ContainerCreating"}}, ready=False)
            await self._wait(self._delays.started)
            await self._say(name, "Running", running, ready=False)
            await self._wait(self._delays.ready)
        await self._say(name, "Running", running, ready=True)

    async def _take_away(self, name: str) -> None:
        # Only a pod that is bound to a node stays until its kubelet has ended it.
        if self._delays is not None:
            await self._wait(self._delays.ended)
        await self._api.delete(f"{self._pods}/{name}", gracePeriodSeconds=0)

    async def _wait(self, between: tuple[float, float]) -> None:
        await asyncio.sleep(self._rng.uniform(*between))

    async def _say(self, name: str, phase: str, state: Manifest, *, ready: bool) -> None:
        true = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
        container = {
            "name": TRAINER_CONTAINER,
            "image": "trainer:1",
            "imageID": "",
            "restartCount": 0,
            "ready": ready,
            "started": "running" in state,
            "state": state,
        }
        status = {
            "phase": phase,
            "podIP": self._address if "waiting" not in state else None,
            "conditions": [
                {"type": kind, "status": str(value), "lastTransitionTime": _now()}
                for kind, value in true.items()
            ],
            "containerStatuses": [container],
        }
        async with self._writes:
            await self._api.merge(f"{self._pods}/{name}/status", {"status": status})


class Reports:
    """What the pods say of the progress of their training: for all of them the same, standing or moving."""

    def __init__(self, address: str = POD_ADDRESS) -> None:
        self._address = address
        self.moving = False
        self.asked = 0
        self._step = 100

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Answer at the pods' address for as long as the block lasts."""
        app = web.Application()
        app.router.add_get("/progress", self._answer)
        runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._address, contract.PROGRESS_PORT).start()
            yield
        finally:
            await runner.cleanup()

    async def _answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(body=self._body(), content_type="application/json")

    def _body(self) -> bytes:
        self._step += self.moving
        figures = {"step": self._step, "totalSteps": 10**9, "examplesPerSecond": 1234.5, "loss": 0.7}
        return json.dumps({"progress": figures | {"updatedTime": "2026-01-01T00:00:00Z"}}).encode()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
