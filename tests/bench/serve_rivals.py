"""LitServe and TorchServe with the models of `make bench-serve`, each in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from tests.bench.serve_servers import ROOT, Server, environment_of, free_port, last_line, running

LITSERVE = (
    "litserve==0.2.19",
    "python-multipart==0.0.34",
    "onnxruntime==1.32.0",
    "numpy>=2,<3",
    "pillow==13.0.0",
)
TORCHSERVE = (
    "torchserve==0.12.0",
    "torch-model-archiver==0.12.0",
    "torch==2.13.0",
    "onnxruntime==1.32.0",
    "numpy>=2,<3",
    "pillow==13.0.0",
    "pyyaml==6.0.3",
    "setuptools",
)
LOG4J = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration><Appenders><Console name="out"/></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""
"""By default, TorchServe writes several lines for a request."""
HANDLER = ROOT / "tests/bench/serve_torchserve.py"


class Setting(NamedTuple):
    """How a rival uses the processors: workers, the threads of each, and the examples of a batch."""

    workers: int
    threads: int
    batch: int

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads} threads, batches of {self.batch}"


def settings(processors: int) -> tuple[Setting, ...]:
    """Both ways to use all processors; the better one counts."""
    return Setting(1, processors, 32), Setting(processors, 1, 8)


def litserve(folder: Path, setting: Setting, log: Path) -> AbstractContextManager[Server]:
    """LitServe with a model. Raises RuntimeError if its environment can't be made."""
    python = environment_of("litserve", LITSERVE) / "bin/python"
    port = free_port()
    words = [str(port), *map(str, setting), str(folder)]
    return running([str(python), str(ROOT / "tests/bench/serve_litserve.py"), *words], port, log, _healthy)


def _healthy(port: int) -> bool:
    """Whether LitServe's workers are ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def torchserve(
    models: Mapping[str, Path], setting: Setting, work: Path, log: Path
) -> AbstractContextManager[Server]:
    """TorchServe with models by name. Raises RuntimeError if an environment or an archive can't be made."""
    programs = environment_of("torchserve", TORCHSERVE) / "bin"
    path = f"{programs}:{os.environ['PATH']}"
    store = work / "store"
    store.mkdir(parents=True, exist_ok=True)
    for name, folder in models.items():
        archive = [str(programs / "torch-model-archiver"), "--model-name", name, "--version", "1.0",
                   "--handler", str(HANDLER), "--extra-files", str(folder / "model.onnx"),
                   "--export-path", str(store), "--archive-format", "no-archive", "--force"]  # fmt: skip
        ended = subprocess.run(archive, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(last_line(ended.stderr))
    ports = [free_port() for _ in range(6)]
    how = {"minWorkers": setting.workers, "maxWorkers": setting.workers, "batchSize": setting.batch,
           "maxBatchDelay": 2, "responseTimeout": 120}  # fmt: skip
    known = {name: {"1.0": {"defaultVersion": True, "marName": name, **how}} for name in models}
    addresses = zip(("inference", "management", "metrics"), ports[:3], strict=True)
    options = [
        *(f"{kind}_address=http://127.0.0.1:{port}" for kind, port in addresses),
        f"grpc_inference_port={ports[3]}",
        f"grpc_management_port={ports[4]}",
        f"initial_worker_port={ports[5]}",
        f"model_store={store}",
        "load_models=all",
        f"models={json.dumps(known)}",
        "disable_token_authorization=true",
        "enable_envvars_config=false",
        "job_queue_size=1000",
        "install_py_dep_per_model=false",
    ]
    (work / "config.properties").write_text("\n".join(options) + "\n")
    (work / "log4j2.xml").write_text(LOG4J)
    command = [str(programs / "torchserve"), "--start", "--foreground", "--ncs", "--model-store", str(store),
               "--ts-config", str(work / "config.properties"), "--log-config", str(work / "log4j2.xml")]  # fmt: skip
    return running(
        command,
        ports[0],
        log,
        lambda _: all(_has_workers(ports[1], name, setting.workers) for name in models),
        PATH=path,
        BENCH_THREADS=str(setting.threads),
        TMPDIR=str(work),  # It refuses to start beside another one that has its file there.
        LOG_LOCATION=str(work),
        METRICS_LOCATION=str(work),
    )


def _has_workers(port: int, name: str, workers: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/models/{name}", timeout=5) as answer:
            found = json.load(answer)[0]["workers"]
    except OSError:
        return False
    return len(found) == workers and all(each["status"] == "READY" for each in found)
