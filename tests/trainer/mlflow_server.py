"""A small MLflow server: `python mlflow_server.py PORT JOURNAL`. What it took is in the journal, and survives it."""

from __future__ import annotations

import json
import re
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Values = dict[str, Any]
PREFIX = "/api/2.0/mlflow/"


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class State:
    """Experiments and runs; only requests that are taken change them."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {"Default": "0"}
        self.runs: dict[str, Values] = {}
        self._points: set[tuple[str, str, float, int, int]] = set()

    def answer(self, path: str, values: Values) -> Values:
        return getattr(self, "do_" + re.sub(r"[/-]", "_", path))(values)

    def do_experiments_get_by_name(self, values: Values) -> Values:
        name = values["experiment_name"]
        if name not in self.experiments:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"no experiment {name}")
        return {
            "experiment": {"experiment_id": self.experiments[name], "name": name, "lifecycle_stage": "active"}
        }

    def do_experiments_create(self, values: Values) -> Values:
        return {"experiment_id": self.experiments.setdefault(values["name"], str(len(self.experiments)))}

    def do_runs_create(self, values: Values) -> Values:
        run = values.get("made") or uuid.uuid4().hex
        values["made"] = run
        self.runs[run] = {
            "experiment": values["experiment_id"],
            "name": values.get("run_name"),
            "status": "RUNNING",
            "tags": {tag["key"]: tag["value"] for tag in values.get("tags", [])},
            "params": {},
            "metrics": [],
            "deleted": False,
        }
        return {"run": self._shown(run)}

    def do_runs_search(self, values: Values) -> Values:
        (uid,) = re.findall(r"tags\.`dtj\.uid` = '([^']*)'", values["filter"])
        found = [
            run
            for run, known in self.runs.items()
            if known["tags"].get("dtj.uid") == uid
            and known["experiment"] in values["experiment_ids"]
            and not known["deleted"]
        ]
        return {"runs": [self._shown(run) for run in found[: values["max_results"]]]}

    def do_runs_get(self, values: Values) -> Values:
        return {"run": self._shown(values["run_id"])}

    def do_runs_update(self, values: Values) -> Values:
        run = self._run(values["run_id"])
        run["status"] = values.get("status", run["status"])
        return {"run_info": self._shown(values["run_id"])["info"]}

    def do_runs_delete(self, values: Values) -> Values:
        self._run(values["run_id"])["deleted"] = True
        return {}

    def do_runs_log_batch(self, values: Values) -> Values:
        run = self._run(values["run_id"])
        metrics, params = values.get("metrics", []), values.get("params", [])
        if len(metrics) > 1000 or len(params) > 100 or len(values.get("tags", [])) > 100:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", "a batch is too large")
        for param in params:
            if run["params"].get(param["key"], param["value"]) != param["value"]:
                raise Refusal(400, "INVALID_PARAMETER_VALUE", f"{param['key']} has another value")
        run["params"] |= {param["key"]: param["value"] for param in params}
        run["tags"] |= {tag["key"]: tag["value"] for tag in values.get("tags", [])}
        for metric in metrics:
            point = (metric["key"], metric["value"], int(metric["timestamp"]), int(metric.get("step", 0)))
            if (values["run_id"], *point) not in self._points:
                self._points.add((values["run_id"], *point))
                run["metrics"].append(point)
        return {}

    def _run(self, run: str) -> Values:
        if run not in self.runs:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"no run {run}")
        return self.runs[run]

    def _shown(self, run: str) -> Values:
        known = self._run(run)
        info = {
            "run_id": run,
            "run_uuid": run,
            "experiment_id": known["experiment"],
            "status": known["status"],
            "lifecycle_stage": "deleted" if known["deleted"] else "active",
        }
        params = [{"key": name, "value": value} for name, value in known["params"].items()]
        return {"info": info, "data": {"params": params}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state = State()
    lock = threading.Lock()
    journal = Path()

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        if split.path == "/all":
            self._send(200, self.state.runs)
        else:
            self._take(split.path, {name: values[0] for name, values in parse_qs(split.query).items()})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._take(self.path, json.loads(body or b"{}"))

    def _take(self, path: str, values: Values) -> None:
        with self.lock:
            try:
                answer = self.state.answer(path.removeprefix(PREFIX), values)
            except Refusal as refusal:
                self._send(refusal.status, {"error_code": refusal.code, "message": str(refusal)})
                return
            except AttributeError:
                self._send(404, {"error_code": "ENDPOINT_NOT_FOUND", "message": path})
                return
            with self.journal.open("a") as file:
                file.write(json.dumps([path.removeprefix(PREFIX), values]) + "\n")
        self._send(200, answer)

    def _send(self, status: int, answer: Values) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        del arguments


def main() -> None:
    Handler.journal = Path(sys.argv[2])
    if Handler.journal.exists():
        for line in Handler.journal.read_text().splitlines():
            Handler.state.answer(*json.loads(line))
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
