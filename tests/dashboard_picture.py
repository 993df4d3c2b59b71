"""`make dashboard-picture`: docs/pictures/dashboard.png; needs `prometheus` on the PATH, and no cluster.

The operator is the real process and a real Prometheus asks it; the queries are those of the dashboard's file, with
all variables at All, over four minutes. The cluster is played: an API server of the tests, and pods that wait for
GPUs, start, report steps, are lost, fail and end without training anything. Grafana is not needed: matplotlib draws
the panels.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from dtj.api.identity import LABEL_JOB, LABEL_ROLE
from dtj.api.job import Manifest
from dtj.status.times import written_time
from dtj_trainer import contract
from tests.dashboard_drawing import Series, picture, series_of
from tests.unit.support.fake_cluster import name_of
from tests.unit.support.http_cluster import HttpCluster, http_cluster
from tests.unit.support.jobs import stored
from tests.unit.support.kubeconfig import write_kubeconfig

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "charts/dtj-operator/files/dashboard.json"
PICTURE = ROOT / "docs/pictures/dashboard.png"
SECONDS = 240
GPUS = 24
"""Of all nodes."""
_VARIABLE = re.compile(r"\$\w+")
_STEP_SECONDS = 2
_CHECKPOINT_SECONDS = 20.0
_METRICS_PORT, _HEALTH_PORT, _PROMETHEUS_PORT = 18081, 18080, 19090


@dataclass
class Training:
    """What a job does while it runs."""

    total: int
    rate: float
    """Steps a second."""
    fails: bool = False
    step: float = 0.0
    saved: tuple[int, float] = (0, 0.0)
    """Step and time of the newest checkpoint."""
    runs_since: float | None = None


@dataclass
class Play:
    """Nodes, and the programs of the jobs."""

    api: HttpCluster
    jobs: dict[str, Training] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)
    """When a pod that has a node runs, by its uid."""

    def apply(self, namespace: str, name: str, training: Training, **spec: Any) -> None:
        """Make a job."""
        self.jobs[name] = training
        job = stored(name, **spec)
        job["metadata"] |= {"namespace": namespace, "creationTimestamp": written_time(datetime.now(UTC))}
        self.api.cluster.put(job)

    async def go_on(self) -> None:
        """Move every pod one step along its way, twice a second."""
        while True:
            for pod in self.api.cluster.of_kind("Pod"):
                if "deletionTimestamp" in pod["metadata"]:
                    self.api.cluster.remove(name_of(pod))
                else:
                    self._move(pod)
            await asyncio.sleep(0.5)

    def _move(self, pod: Manifest) -> None:
        now, uid = time.time(), pod["metadata"]["uid"]
        status = pod.get("status") or {}
        phase, name = status.get("phase", "Pending"), pod["metadata"]["labels"][LABEL_JOB]
        training, role = self.jobs[name], pod["metadata"]["labels"][LABEL_ROLE]
        if phase == "Pending" and "nodeName" not in pod["spec"]:
            if _gpus(pod) > GPUS - sum(_gpus(other) for other in self._placed()):
                why = {"reason": "Unschedulable", "message": f"0/3 nodes are available: {GPUS} GPUs in use"}
                if "conditions" not in status:
                    self._tell(pod, {"phase": "Pending", "conditions": [_is("PodScheduled", False, **why)]})
                return
            self.starts[uid] = now + 3 + hash(uid) % 50 / 10
            pod["spec"]["nodeName"] = f"node-{hash(uid) % 3}"
            self._tell(pod, {"phase": "Pending", "conditions": [_is("PodScheduled", True)]})
        elif phase == "Pending" and now > self.starts[uid]:
            conditions = [*status["conditions"], _is("Ready", True), _is("ContainersReady", True)]
            address = f"127.1.{list(self.jobs).index(name)}.1"
            self._tell(pod, {"phase": "Running", "podIP": address, "conditions": conditions})
        elif phase == "Running" and role in ("launcher", "chief"):
            if training.fails and now > self.starts[uid] + 4:
                self._tell(pod, _ended(1))
            elif training.step >= training.total:
                self._tell(pod, _ended(0))
            else:
                self._train(training, now)

    def _placed(self) -> list[Manifest]:
        """Pods that hold their node's GPUs."""
        pods = [pod for pod in self.api.cluster.of_kind("Pod") if "nodeName" in pod["spec"]]
        return [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]

    def _train(self, training: Training, now: float) -> None:
        if training.runs_since is None:
            training.runs_since, training.step = now, float(training.saved[0])
            return
        training.step = min(training.step + 0.5 * training.rate, training.total)
        if now - max(training.saved[1], training.runs_since) > _CHECKPOINT_SECONDS:
            training.saved = int(training.step), now

    def lose(self, namespace: str, pod: str) -> None:
        """A pod is deleted."""
        name = ("Pod", namespace, pod)
        self.jobs[self.api.cluster.objects[name]["metadata"]["labels"][LABEL_JOB]].runs_since = None
        self.api.cluster.remove(name)

    def _tell(self, pod: Manifest, status: Manifest) -> None:
        self.api.cluster.put({**pod, "status": status})

    async def report(self, request: web.Request) -> web.Response:
        """The answer of /progress, by the address that is asked."""
        number = int(request.url.host.split(".")[2]) if request.url.host else 0
        training = list(self.jobs.values())[number]
        progress = {
            "step": int(training.step),
            "totalSteps": training.total,
            "examplesPerSecond": training.rate * 512 * (1 + hash(int(training.step)) % 7 / 100),
        }
        step, when = training.saved
        checkpoint = {"step": step, "time": written_time(datetime.fromtimestamp(when, UTC))}
        artifacts = {"artifacts": {"checkpoint": checkpoint}} if step else {}
        return web.json_response({"progress": progress, **artifacts})


def _gpus(pod: Manifest) -> int:
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return int(limits.get("nvidia.com/gpu", 0))


def _is(kind: str, holds: bool, **why: str) -> Manifest:
    return {"type": kind, "status": str(holds), "lastTransitionTime": written_time(datetime.now(UTC)), **why}


def _ended(code: int) -> Manifest:
    terminated = {"exitCode": code, "finishedAt": written_time(datetime.now(UTC))}
    state = {"name": "trainer", "state": {"terminated": terminated}}
    conditions = [_is("PodScheduled", True)]
    return {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [state],
        "conditions": conditions,
    }


async def perform(play: Play) -> None:
    """Four minutes of two teams."""
    end = time.monotonic() + SECONDS
    bucket = {"artifacts": {"uri": "s3://training/jobs"}, "runPolicy": {"stallTimeoutSeconds": 600}}

    def workers(replicas: int, gpus: int, **roles: Any) -> Manifest:
        return {"replicaSpecs": {"worker": {"replicas": replicas, "gpus": gpus}, **roles}}

    play.apply("vision", "resnet", Training(2400, 16), **workers(2, 8), **bucket)
    await asyncio.sleep(8)
    ps = {"strategy": "ParameterServer"}
    play.apply("ads", "ranking", Training(3000, 30), **ps, **workers(4, 1, ps={"replicas": 2}), **bucket)
    await asyncio.sleep(10)
    play.apply("vision", "vit", Training(600, 12), **workers(2, 4), **bucket)
    await asyncio.sleep(15)
    limit = {"runPolicy": {"backoffLimit": 1}}
    play.apply("ads", "typo", Training(10, 1, fails=True), **workers(1, 1), **limit)
    await asyncio.sleep(45)
    play.lose("vision", "resnet-worker-1")
    await asyncio.sleep(40)
    play.lose("ads", "ranking-worker-2")
    await asyncio.sleep(end - time.monotonic())


@asynccontextmanager
async def process(*words: str, **environment: str) -> AsyncIterator[None]:
    """A process for as long as the block lasts."""
    started = await asyncio.create_subprocess_exec(
        *words, env={**os.environ, **environment}, stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        yield
    finally:
        started.terminate()
        await started.wait()


async def ask(path: str, **query: str) -> Any:
    """An answer of Prometheus; None while it does not answer."""
    url = f"http://127.0.0.1:{_PROMETHEUS_PORT}{path}"
    try:
        async with aiohttp.ClientSession() as session, session.get(url, params=query) as answer:
            return (await answer.json())["data"]["result"]
    except aiohttp.ClientError:
        return None


async def answers(panels: list[Manifest], times: range) -> dict[int, list[Series]]:
    """What Prometheus answers to each panel, at these times."""
    found: dict[int, list[Series]] = {panel["id"]: [] for panel in panels}
    span = {"start": f"{times[0]}", "end": f"{times[-1]}", "step": f"{times.step}"}
    for panel in panels:
        for target in panel.get("targets", ()):
            query = _VARIABLE.sub(".*", target["expr"])
            answer = await ask("/api/v1/query_range", query=query, **span)
            found[panel["id"]] += series_of(target["legendFormat"], answer, times)
    return found


async def draw(prometheus: str, folder: Path) -> None:
    """Play, ask, draw."""
    labels = {"namespace": "dtj-system", "instance": "dtj-operator-0"}
    target = {"targets": [f"127.0.0.1:{_METRICS_PORT}"], "labels": labels}
    scrape = {"job_name": "dtj-operator-metrics", "static_configs": [target]}
    config = {"global": {"scrape_interval": f"{_STEP_SECONDS}s"}, "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(http_cluster(moves=False))
        play = Play(api)
        write_kubeconfig(folder / "kubeconfig", api.url)
        app = web.Application()
        app.router.add_get("/progress", play.report)
        runner = web.AppRunner(app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        # Each job has a loopback address of its own.
        await web.TCPSite(runner, "0.0.0.0", contract.PROGRESS_PORT).start()
        ports = f"--metrics-port={_METRICS_PORT}", f"--health-port={_HEALTH_PORT}", "--progress-interval=2"
        operator = sys.executable, "-c", "from dtj.process import main; main()", *ports
        await stack.enter_async_context(process(*operator, KUBECONFIG=str(folder / "kubeconfig")))
        listen = f"--web.listen-address=127.0.0.1:{_PROMETHEUS_PORT}", f"--storage.tsdb.path={folder}/data"
        config_file = f"--config.file={folder}/prometheus.yml"
        await stack.enter_async_context(process(prometheus, config_file, *listen))
        kubelet = asyncio.create_task(play.go_on())
        stack.callback(kubelet.cancel)
        async with asyncio.timeout(60):
            while not await ask("/api/v1/query", query="dtj_leader"):
                await asyncio.sleep(0.5)
        begin = int(time.time())
        await perform(play)
        assert not kubelet.done(), kubelet.exception()
        times = range(begin, int(time.time()), _STEP_SECONDS)
        panels = json.loads(DASHBOARD.read_text())["panels"]
        seconds = [moment - begin for moment in times]
        PICTURE.write_bytes(picture(panels, await answers(panels, times), seconds))


def main() -> None:
    """Draw it."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        sys.exit("prometheus is not on the PATH: https://prometheus.io/download")
    with tempfile.TemporaryDirectory(prefix="dtj-prometheus-") as folder:
        asyncio.run(draw(prometheus, Path(folder)))


if __name__ == "__main__":
    main()
