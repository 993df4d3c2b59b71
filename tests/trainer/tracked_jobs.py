"""Jobs of one pod that a tracking server records, and the small server on loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tests.trainer.conftest import Workspace, free_ports, get_json, has, until
from tests.trainer.torch_pods import torch_pods

from dtj_trainer.artifacts.store import Store, open_store
from dtj_trainer.tracking.lines import StoredFiles, next_lines
from dtj_trainer.tracking.points import points_of

SERVER = Path(__file__).with_name("mlflow_server.py")
UID = "uid-of-the-job"


class FakeServer:
    """The small MLflow server on loopback."""

    def __init__(self, folder: Path) -> None:
        self._journal = folder / "mlflow.jsonl"
        (self._port,) = free_ports(1)
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, str(SERVER), str(self._port), str(self._journal)])
        until(self._answers, "the MLflow server answers")

    def _answers(self) -> bool:
        try:
            return get_json(f"{self.uri}/all") is not None
        except OSError:
            return False

    def signal(self, number: int) -> None:
        assert self._process
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def runs(self) -> dict[str, Any]:
        return {run: known for run, known in get_json(f"{self.uri}/all").items() if not known["deleted"]}

    @property
    def run(self) -> dict[str, Any]:
        (known,) = self.runs.values()
        return known


class Tracker(Protocol):
    """What the tests need of a server, small or real."""

    uri: str

    def start(self) -> None: ...

    def kill(self) -> None: ...

    @property
    def runs(self) -> dict[str, Any]: ...

    @property
    def run(self) -> dict[str, Any]: ...


def tracked(make_workspace: Callable[..., Workspace], uri: str, slots: int = 1, **more: str) -> Workspace:
    """The one pod of a job that is tracked there."""
    names = {"DTJ_JOB": "mnist", "DTJ_NAMESPACE": "ml", "DTJ_TRACKING_URI": uri}
    names |= {"DTJ_TRACKING_START_SECONDS": "400", "DTJ_TRACKING_END_SECONDS": "400", **more}
    (pod,) = torch_pods(make_workspace, 1, slots, **names)
    return pod


def attempt(steps: range, exit_code: int = 0, wait_for: Path | None = None) -> str:
    """A program that reports steps as the built-in ones do, and ends after a file is there."""
    wait = f"while not os.path.exists({str(wait_for)!r}): time.sleep(0.05)" if wait_for else ""
    return f"""
import os, sys, time
from dtj_trainer.train.report import MetricsFile
metrics = MetricsFile(2)
print("run", os.environ.get("MLFLOW_RUN_ID"), os.environ.get("MLFLOW_TRACKING_URI"), flush=True)
metrics.add("start", {{"step": {steps.start}, "model": "cnn", "batchSize": 64}})
for step in range({steps.start}, {steps.stop}):
    metrics.add("train", {{"step": step, "loss": 1 / (step + 1), "stepSeconds": {{"forward": step / 7}}}})
print("reported", flush=True)
{wait}
sys.exit({exit_code})
"""


def stored_points(store: Store) -> set[tuple[str, float, int, int]]:
    """The points of metrics.jsonl in the bucket."""
    files = StoredFiles(store)
    size = files.sizes(utilisation=False)["metrics.jsonl"]
    found: set[tuple[str, float, int, int]] = set()
    at = 0
    while at < size:
        lines, at = next_lines(files, "metrics.jsonl", at, size)
        for line in lines:
            found.update(tuple(point) for point in points_of("metrics.jsonl", line))
    return found


def sent_points(run: dict[str, Any]) -> set[tuple[str, float, int, int]]:
    return {
        (name, value, time, step)
        for name, value, time, step in run["metrics"]
        if name != "attempt" and not name.startswith("system/")
    }


def two_restarts(
    make_workspace: Callable[..., Workspace], server: Tracker, job_uri: str, tmp_path: Path, down: float = 0
) -> None:
    """A job that fails twice; the server is down from its second attempt on, and for some seconds of the third."""
    server.start()
    store = open_store(job_uri)
    (tmp_path / "pod0/etc").mkdir(parents=True)
    (tmp_path / "pod0/etc/job.yaml").write_text(
        "spec: {image: 'trainer:1', command: [python, -m, train], args: [--epochs=3, --lr, '0.1', --bf16]}"
    )
    more = {"DTJ_ARTIFACTS_URI": job_uri, "DTJ_TRACKING_EXPERIMENT": "digits"}
    pod = tracked(make_workspace, server.uri, **more)

    first = pod.python(attempt(range(5), exit_code=3), "ranks", DTJ_ATTEMPT="1")
    assert first.ended(90) == 3
    (run,) = server.runs
    assert f"run {run} {server.uri}\n" in first.output
    assert has(store, "tracking.json")

    server.kill()
    second = pod.python(attempt(range(3, 8), exit_code=3), "ranks", DTJ_ATTEMPT="2")
    assert second.ended(90) == 3
    assert f"run {run} {server.uri}\n" in second.output  # known from the bucket

    go = tmp_path / "go"
    third = pod.python(attempt(range(6, 2600), wait_for=go), "ranks", DTJ_ATTEMPT="3")
    third.says("trying again until it does", 90)
    time.sleep(down)
    server.start()
    until(lambda: server.run["tags"]["dtj.attempt"] == "3", "the server has the attempt", 60)
    go.touch()
    assert third.ended(90) == 0, third.output

    assert list(server.runs) == [run]
    known = server.run
    assert sent_points(known) == stored_points(store)
    assert len(sent_points(known)) == 3 * (5 + 5 + 2594)
    assert known["status"] == "FINISHED"
    assert 3.0 in [point[1] for point in known["metrics"] if point[0] == "attempt"]
    options = {"image": "trainer:1", "epochs": "3", "lr": "0.1", "bf16": "true"}
    assert known["params"] == options | {"model": "cnn", "batchSize": "64", "worldSize": "2"}
    assert known["tags"]["dtj.uid"] == UID
    assert known["tags"]["dtj.artifacts"] == job_uri
