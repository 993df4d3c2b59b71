"""What is said of a job while its object exists, and what its record says once the API server is gone.

The statuses are those of the operator, with a cluster in memory; the records are those of its record pod and of the
pod that decides. `make test-ends` does the same with real jobs.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.said import (
    OF_THE_OPERATOR,
    Parts,
    differences,
    dtj,
    list_parts,
    page,
    page_parts,
    page_row_parts,
    status_parts,
)
from tests.trainer.conftest import BUCKET, ObjectStore
from tests.unit.reconcile.test_record import ARTIFACTS, Recorded, suspend
from tests.unit.support.http_cluster import HttpCluster, http_cluster
from tests.unit.support.jobs import manifest
from tests.unit.support.kubeconfig import TOKEN, write_kubeconfig

from dtj.api.job import Manifest, read_job
from dtj.api.yaml_text import dump
from dtj.plan.history import history_of
from dtj.plan.record import end_record_of
from dtj_trainer import contract
from dtj_trainer.artifacts.history import HistoryWriter
from dtj_trainer.artifacts.store import open_store
from dtj_trainer.contract.history import success_record

PROGRESS = {"step": 7, "totalSteps": 7, "percent": 100.0, "accuracy": 0.5, "exportError": "no ONNX form"}


async def statuses() -> dict[str, Manifest]:
    """The status of a job of each kind, as the operator writes it."""
    failed, wrong, paused, done = (
        Recorded(),
        Recorded(env=[{"name": "DTJ_ATTEMPT", "value": "2"}]),
        Recorded(),
        Recorded(),
    )
    paused.code = None
    report = {"progress": PROGRESS, "artifacts": {"uri": "s3://training/jobs/ml/mnist"}}
    done.code, done.message = 0, json.dumps({"exitCode": 0, "recorded": True} | report)
    await paused.until(lambda: paused.phase == "Running")
    suspend(paused, True)
    for world in (failed, wrong, paused, done):
        await world.rest()
    found = {"failed": failed, "wrong": wrong, "paused": paused, "done": done}
    return {
        name: json.loads(json.dumps(world.status).replace("mnist", name)) for name, world in found.items()
    }


def test_a_record_says_what_was_said(tmp_path: Path, object_store: ObjectStore) -> None:
    wanted = asyncio.run(statuses())
    history = f"s3://{BUCKET}/{tmp_path.name}"
    environment = {
        "KUBECONFIG": str(tmp_path / "config"), "XDG_CACHE_HOME": str(tmp_path), "DTJ_ARTIFACTS": history,
        "NO_COLOR": "1",
    }  # fmt: skip
    with served(tmp_path) as (cluster, stop), page("ml", history, environment) as ui:
        for name, status in wanted.items():
            add(cluster, name, status, history)
        listed = list_parts(dtj("list", "-n", "ml", environment=environment).out)

        def before(name: str) -> Parts:
            text = dtj("status", name, "-n", "ml", environment=environment).out
            return status_parts(text) | listed[name] | page_parts(ui.get(f"jobs/ml/{name}"))

        def now(name: str) -> Parts:
            text = dtj("status", name, "--past", environment=environment).out
            return status_parts(text) | past[name] | page_parts(ui.get(f"jobs/ml/{name}"))

        with ThreadPoolExecutor(2) as pool:
            said = dict(zip(wanted, pool.map(before, wanted), strict=True))
            stop()
            past = list_parts(dtj("list", "--past", environment=environment).out)
            says = dict(zip(wanted, pool.map(now, wanted), strict=True))
        rows = {row["name"]: row for row in ui.get("past")}
    for name in wanted:
        missing = OF_THE_OPERATOR if name == "done" else set()
        assert differences(said[name], says[name], missing) == [], name
        assert differences(says[name] | page_row_parts(rows[name]), says[name], set()) == [], name
    assert said["failed"]["failure"].startswith("Failure of attempt 1: ApplicationError")
    assert said["done"]["condition Succeeded"] == says["done"]["condition Succeeded"]


def add(cluster: HttpCluster, name: str, status: Manifest, history: str) -> None:
    """Add a job with its status, and leave its history in the bucket."""
    artifacts = {**ARTIFACTS, "uri": history}
    stored = cluster.cluster.add(
        manifest(name, command=["python", "train.py", "--lr=0.1"], artifacts=artifacts)
    )
    uri = read_job(stored).artifacts_uri
    cluster.set_status(name, **status | {"artifacts": {"uri": uri}})
    job = read_job(cluster.jobs[name])
    told = history_of(job)
    assert uri
    assert told
    writer = HistoryWriter(open_store(uri), told)
    writer.write_index()
    writer.write_run()
    content = dump({key: value for key, value in stored.items() if key != "status"}).encode()
    writer.write_absent(contract.JOB_FILE, content)
    if name == "done":
        report: dict[str, Any] = {"progress": PROGRESS, "artifacts": {"uri": uri}}
        record = success_record(told, "launcher-0", 1, status["startTime"], status["completionTime"], report)
    else:
        record = end_record_of(job, job.status, [], "2026-11-21T12:30:00Z")
    assert writer.write_end(record)


@contextmanager
def served(folder: Path) -> Iterator[tuple[HttpCluster, Any]]:
    """An API server in this process, and the function that ends it."""
    loop, ended = asyncio.new_event_loop(), threading.Event()
    over = asyncio.Event()
    ready: list[HttpCluster] = []
    there = threading.Event()

    async def serve() -> None:
        async with http_cluster(moves=False) as cluster:
            cluster.tokens = {TOKEN}
            ready.append(cluster)
            there.set()
            await over.wait()
        ended.set()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()

    def stop() -> None:
        if not ended.is_set():
            loop.call_soon_threadsafe(over.set)
            assert ended.wait(60)

    assert there.wait(60)
    write_kubeconfig(folder / "config", ready[0].url)
    try:
        yield ready[0], stop
    finally:
        stop()
        thread.join()
        loop.close()
