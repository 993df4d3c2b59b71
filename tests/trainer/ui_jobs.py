"""`dtj ui` with jobs of each kind: an API server in memory, a real S3 store, and the real program."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import ui_program
from tests.trainer.conftest import BUCKET, ObjectStore
from tests.unit.support import past_jobs
from tests.unit.support.http_cluster import HttpCluster, http_cluster
from tests.unit.support.jobs import manifest
from tests.unit.support.kubeconfig import TOKEN, write_kubeconfig
from tests.unit.support.pods import stored_pod

from dtj.api.job import read_job
from dtj_trainer.artifacts.store import open_store

SECRET_VALUE = "correct horse battery staple"
HOSTILE = "<img src=x onerror=\"fetch('http://127.0.0.1:1/')\">"
"""Text of a tenant that a careless page would run."""
_TIME = "2026-11-21T12:00:00Z"


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Ui:
    """The running program."""

    address: str
    """What it printed."""
    cluster: HttpCluster
    history: str
    """The `artifacts.uri` of the jobs of the past."""

    @property
    def origin(self) -> str:
        return self.address.partition("/#")[0]

    @property
    def token(self) -> str:
        return self.address.partition("#token=")[2]

    def __call__(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        """Ask the API; by default with the token."""
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **headers}
        request = urllib.request.Request(
            f"{self.origin}{path}",
            None if body is None else json.dumps(body).encode(),
            {name.replace("_", "-"): value for name, value in sent.items() if value},
            method=method,
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read())


def add(cluster: HttpCluster, name: str, phase: str, conditions: Any = (), **status: Any) -> str:
    """Add a job; its prefix in the bucket."""
    made = manifest(
        name,
        command=["python", "train.py", "--lr=0.1", "--epochs", "3", f"--note={name}"],
        artifacts={"uri": f"s3://{BUCKET}/ui"},
        env=[{"name": "API_TOKEN", "value": SECRET_VALUE}, {"name": "OMP_NUM_THREADS", "value": "1"}],
    )
    prefix = read_job(cluster.cluster.add(made)).artifacts_uri
    assert prefix
    held = [
        {"type": kind, "status": value, "reason": "Because", "message": message, "lastTransitionTime": _TIME}
        for kind, value, message in conditions
    ]
    cluster.set_status(
        name, phase=phase, conditions=held, attempt=1, startTime=_TIME, artifacts={"uri": prefix}, **status
    )
    return prefix


def fill(cluster: HttpCluster, environment: Mapping[str, str]) -> None:
    """Add a job of each kind, with what the first of them left in the bucket."""
    running = add(
        cluster,
        "running",
        "Running",
        [("Running", "True", "all pods run")],
        progress={
            "step": 120,
            "totalSteps": 200,
            "percent": 60,
            "loss": 0.5,
            "accuracy": 0.8,
            "etaSeconds": 90,
        },
    )
    for index in range(2):
        made = stored_pod(f"running-worker-{index}")
        made["metadata"]["namespace"] = "ml"
        status = made["status"]
        cluster.cluster.add(made)
        cluster.cluster.change(
            ("Pod", "ml", made["metadata"]["name"]), lambda pod, s=status: pod.update(status=s)
        )
    rows = [{"kind": "start", "time": _TIME, "step": 0, "attempt": 1, "worldSize": 2}]
    rows += [
        {"kind": kind, "time": f"2026-11-21T12:{step // 60:02}:{step % 60:02}Z", "step": step, **values}
        for step in range(1, 121)
        for kind, values in (
            ("train", {"loss": 2 / step, "examplesPerSecond": 100.0 + step, "attempt": 1 + step // 60}),
            ("test", {"accuracy": step / 130, "attempt": 1 + step // 60}),
        )
    ]
    store = open_store(running, environment)
    store.put_bytes("metrics.jsonl", "\n".join(map(json.dumps, rows)).encode())
    store.put_bytes("logs/attempt-1/launcher-0.log", b"[rank 0] step 1\n[rank 1] " + HOSTILE.encode() + b"\n")
    store.put_bytes("model/model.html", HOSTILE.encode())
    ended = {"completionTime": "2026-11-21T13:00:00Z"}
    model = add(
        cluster,
        "succeeded",
        "Succeeded",
        [("Succeeded", "True", "done")],
        progress={"step": 200, "totalSteps": 200, "percent": 100, "accuracy": 0.95},
        **ended,
    )
    cluster.set_status("succeeded", artifacts={"uri": model, "model": f"{model}/model"})
    faster = [
        row | {"step": row["step"] * 2, "accuracy": 0.95}
        if row["kind"] == "test"
        else row | {"examplesPerSecond": 1100.0 + row["step"]}
        for row in rows
    ]
    store = open_store(model, environment)
    store.put_bytes("metrics.jsonl", "\n".join(map(json.dumps, faster)).encode())
    store.put_bytes("logs/attempt-1/launcher-0.log", f"[rank 0] step 1\n[rank 1] {HOSTILE}\n".encode())
    store.put_bytes("logs/attempt-1/rank-0.log", b"step 1\n")
    add(
        cluster,
        "failed",
        "Failed",
        [("Failed", "True", "the program failed")],
        failure={
            "attempt": 1,
            "class": "OutOfMemory",
            "pod": "failed-worker-1",
            "node": "node-2",
            "rank": 1,
            "message": f"the container had too little memory {HOSTILE}",
            "lastLogLines": ["step 7", HOSTILE],
        },
        restarts={"application": 2, "infrastructure": 1},
        **ended,
    )
    add(
        cluster,
        "unschedulable",
        "Pending",
        [("Running", "False", "0/3 nodes are available: 3 Insufficient gpu")],
    )
    add(cluster, "suspended", "Suspended", [("Suspended", "True", "suspended by the user")])
    cluster.cluster.change(
        ("DistributedTrainingJob", "ml", "suspended"),
        lambda job: job["spec"].setdefault("runPolicy", {}).update(suspend=True),
    )


def fill_history(uri: str, environment: Mapping[str, str]) -> None:
    """Leave what deleted jobs left: one that failed, one without a recorded end, and two of one name."""
    store = open_store(uri, environment)
    jobs = [past_jobs.entry(n, name) for n, name in enumerate(("gone", "lost", "twice", "twice"))]
    for job, phase in zip(jobs, ("Failed", None, "Succeeded", "Failed"), strict=True):
        past_jobs.put(store, job, past_jobs.end(job, phase) if phase else None)
        made = manifest(job.name, args=["--lr=0.5", "--api-key", SECRET_VALUE])
        store.put_bytes(f"{job.prefix}/job.yaml", json.dumps(made).encode())
        row = {"kind": "test", "time": _TIME, "step": 3, "accuracy": 0.91}
        store.put_bytes(f"{job.prefix}/metrics.jsonl", json.dumps(row).encode())
        store.put_bytes(f"{job.prefix}/logs/attempt-1/launcher-0.log", b"[rank 0] the last line\n")


@contextmanager
def served(
    folder: Path, store: ObjectStore, *, empty: bool = False, own: Mapping[str, str] | None = None
) -> Iterator[Ui]:
    """Run the program beside an API server in this process.

    empty: without any job. own: the user's variables; by default those of the store, and the history.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stop: Future[None] | None = None
    ready: Future[HttpCluster] = Future()
    ended = asyncio.Event()
    history = f"s3://{BUCKET}/past-{uuid.uuid4().hex[:8]}"

    async def serve() -> None:
        async with http_cluster(moves=False) as cluster:
            cluster.tokens = {TOKEN}
            ready.set_result(cluster)
            await ended.wait()

    try:
        stop = asyncio.run_coroutine_threadsafe(serve(), loop)
        cluster = ready.result(60)
        if not empty:
            fill(cluster, store.environment)
            fill_history(history, store.environment)
        write_kubeconfig(folder / "config", cluster.url)
        with _program(folder, own or {**store.environment, "DTJ_ARTIFACTS": history}) as address:
            yield Ui(address, cluster, history)
    finally:
        loop.call_soon_threadsafe(ended.set)
        if stop:
            stop.result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _program(folder: Path, own: Mapping[str, str]) -> AbstractContextManager[str]:
    environment = {**os.environ, **own, "KUBECONFIG": str(folder / "config"), "XDG_CACHE_HOME": str(folder)}
    return ui_program.running(folder, environment)
