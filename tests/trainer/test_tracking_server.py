"""The same against a real MLflow server, in an environment of its own in the cache: `make test-tracking`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.conftest import free_ports, until
from tests.trainer.tracked_jobs import two_restarts

VERSION = "3.17.2"
CACHE = Path(os.environ.get("DTJ_CACHE", Path.home() / ".cache/dtj"))
pytestmark = [pytest.mark.trackers, pytest.mark.timeout(3600)]


def installed() -> Path:
    """The command `mlflow`, 851 MB with its environment."""
    folder = CACHE / f"mlflow-server-{VERSION}"
    done = folder / "done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", f"mlflow=={VERSION}"], check=True)
        done.touch()
    return folder / "bin/mlflow"


class RealServer:
    """An MLflow server with SQLite, read over REST."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self._folder, self._mlflow = folder, installed()
        (self._port,) = free_ports(1)
        self._host = host
        self.uri = f"http://{host}:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        database = f"sqlite:///{self._folder / 'mlflow.db'}"
        options = (
            f"--host={self._host}",
            f"--port={self._port}",
            f"--backend-store-uri={database}",
            "--workers=1",
        )
        off = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._mlflow, "server", *options],
                env=environment | off,
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self._answers, "the MLflow server answers", 120)

    def kill(self) -> None:
        if self._process:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            return bool(self._ask("experiments/search", max_results=1))
        except OSError:
            return False

    def _ask(self, path: str, **values: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}",
            json.dumps(values).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def _history(self, run: str, metric: str) -> Iterator[list[Any]]:
        page = ""
        while True:
            query = urllib.parse.urlencode(
                {"run_id": run, "metric_key": metric, "max_results": 1000, "page_token": page}
            )
            with urllib.request.urlopen(f"{self.uri}/api/2.0/mlflow/metrics/get-history?{query}") as answer:
                content = json.load(answer)
            for point in content.get("metrics", []):
                yield [
                    point["key"],
                    float(point["value"]),
                    int(point["timestamp"]),
                    int(point.get("step", 0)),
                ]
            if not (page := content.get("next_page_token", "")):
                return

    @property
    def runs(self) -> dict[str, Any]:
        experiments = [
            each["experiment_id"] for each in self._ask("experiments/search", max_results=9)["experiments"]
        ]
        found = self._ask("runs/search", experiment_ids=experiments, max_results=9).get("runs", [])
        return {run["info"]["run_id"]: self._shown(run) for run in found}

    @property
    def run(self) -> dict[str, Any]:
        (known,) = self.runs.values()
        known["metrics"] = [point for name in known["names"] for point in self._history(known["id"], name)]
        return known

    def _shown(self, run: dict[str, Any]) -> dict[str, Any]:
        data = run["data"]
        return {
            "id": run["info"]["run_id"],
            "status": run["info"]["status"],
            "tags": {tag["key"]: tag["value"] for tag in data.get("tags", [])},
            "params": {param["key"]: param["value"] for param in data.get("params", [])},
            "names": [metric["key"] for metric in data.get("metrics", [])],
        }


def test_a_real_server_has_one_run_with_the_points_of_the_bucket(make_workspace, job_uri, tmp_path):
    server = RealServer(tmp_path)
    try:
        two_restarts(make_workspace, server, job_uri, tmp_path, down=60)
    finally:
        server.kill()
