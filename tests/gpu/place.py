"""Where a check runs: the machine, the data, an S3 server, and jobs by `dtj run`."""

from __future__ import annotations

import gzip
import json
import logging
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import yaml

from tests.gpu.sheet import Sheet, needs_gpu

PROGRAM = "dtj_trainer.programs.torch_image_classification"
_KEYS = {"AWS_ACCESS_KEY_ID": "check", "AWS_SECRET_ACCESS_KEY": "check", "AWS_REGION": "us-east-1"}
_BUCKETS = ("training", "datasets")
_SMALL = {"train": 1000, "t10k": 250}
"""Pictures of a check on a CPU."""
_POLL_SECONDS = 0.02
_END_SECONDS = 20.0


class CheckFailed(Exception):
    """A row can't go on."""


@dataclass
class Run:
    """A `dtj run` under way, or ended."""

    folder: Path
    """The folder of the run, with a folder for each replica."""
    log: Path
    seconds: float
    """In which it has to end."""
    process: subprocess.Popen[bytes]

    @property
    def output(self) -> str:
        """Return what `dtj run` has printed."""
        return self.log.read_text(errors="replace")

    @property
    def root(self) -> Path:
        """Return the workspace of the only worker."""
        return self.folder / "worker-0"

    @property
    def status(self) -> dict[str, Any]:
        """Return the status of the job."""
        status: dict[str, Any] = json.loads((self.folder / "job.json").read_text())["status"]
        return status

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of a kind in `metrics.jsonl`."""
        rows = map(json.loads, (self.root / "metrics.jsonl").read_text().splitlines())
        return [row for row in rows if row["kind"] == kind]

    def ended(self, code: int = 0) -> str:
        """Wait for the end; return the output. Raises CheckFailed on another exit code, or after the time."""
        try:
            found = self.process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            raise CheckFailed(
                f"the job has not ended after {self.seconds:.0f} s:\n{self.output[-1500:]}"
            ) from None
        if found != code:
            raise CheckFailed(
                f"`dtj run` ended with {found}, and should end with {code}:\n{self.output[-1500:]}"
            )
        return self.output


@dataclass
class Place:
    """What all rows share."""

    gpu: bool
    data: Path
    folder: Path
    """For files of the check, which are removed afterwards."""
    endpoint: str
    python: str = "python"
    """The program that runs modules and scripts."""
    deadline: float = field(default=float("inf"))
    """When the check has to end, by the monotonic clock."""

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return max(self.deadline - time.monotonic(), 0.0)

    def within(self, seconds: float) -> float:
        """Return the seconds in which something has to end. A CPU may be busy: there, only the check's end counts."""
        return min(seconds, self.left) if self.gpu else self.left

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of processes that reach the S3 server."""
        return {
            **os.environ,
            **_KEYS,
            "AWS_ENDPOINT_URL": self.endpoint,
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    @contextmanager
    def job(
        self,
        name: str,
        command: Sequence[str],
        args: Sequence[str] = (),
        *,
        gpus: int | None = None,
        ranks: int | None = None,
        env: Mapping[str, str] | None = None,
        retries: int = 0,
        seconds: float = 90.0,
    ) -> Iterator[Run]:
        """Run a job of one worker by `dtj run`, which ends with the block.

        gpus: by default the machine's one, if there is one. seconds: see `within`.
        """
        wanted = int(self.gpu) if gpus is None else gpus
        worker = {"replicas": 1, **({"gpus": wanted} if wanted else {})}
        job = {
            "apiVersion": "dtj.dev/v1alpha1",
            "kind": "DistributedTrainingJob",
            "metadata": {"name": name},
            "spec": {
                "strategy": "TorchDistributed",
                "image": "none",
                "command": [*command],
                "args": [*args],
                "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
                "replicaSpecs": {"worker": worker},
                "runPolicy": {"backoffLimit": retries},
                "data": {"uri": self.data.as_uri()},
                "artifacts": {"uri": "s3://training/jobs", "endpoint": self.endpoint},
                **({"torch": {"procsPerWorker": ranks}} if ranks else {}),
            },
        }
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(job))
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["dtj", "run", str(file)],
                env={**self.environment, "DTJ_HOME": str(self.home)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Run(self.home / "runs/default" / name, log, self.within(seconds), process)
        finally:
            process.terminate()
            _wait(process)

    @property
    def home(self) -> Path:
        """Return dtj's home."""
        return self.folder / "home"

    def module(self, name: str, *words: str, env: Mapping[str, str] | None = None) -> list[str]:
        """Return the lines that a module of Python prints. Raises CheckFailed where the module fails."""
        return [*self.lines([self.python, "-m", name, *words], env)]

    def lines(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[str]:
        """Yield each line of a process as it is printed. Raises CheckFailed where the process fails."""
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False) as file:
            process = subprocess.Popen(
                command,
                env={**self.environment, **(env or {})},
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        assert process.stdout is not None
        limit = threading.Timer(min(self.left, threading.TIMEOUT_MAX), process.kill)
        limit.start()
        try:
            yield from (line.rstrip("\n") for line in process.stdout)
        finally:
            limit.cancel()
            process.stdout.close()
            _wait(process)
        if process.returncode:
            raise CheckFailed(
                f"{' '.join(command[:4])} ended with {process.returncode}: {Path(file.name).read_text()[-1500:]}"
            )

    def until(self, reached: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        """Wait for a condition. Raises CheckFailed after so long."""
        end = time.monotonic() + self.within(seconds)
        while not reached():
            if time.monotonic() > end:
                raise CheckFailed(f"{what}: not in time")
            time.sleep(_POLL_SECONDS)


@contextmanager
def place(kit: Path | None, folder: Path, python: str, *, gpu: bool) -> Iterator[Place]:
    """Yield the place of a check: data, and an S3 server on loopback.

    kit: the folder of `make gpu-kit`, or None where the environment has all packages. Raises CheckFailed.
    """
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    whole = kit / "fashion-mnist" if kit is not None else _installed_data()
    data = (whole if gpu else _some(whole, folder / "data")).resolve()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        found = Place(gpu, data, folder, f"http://{host}:{port}", python)
        os.environ.update(found.environment)
        for bucket in _BUCKETS:
            _s3(found).create_bucket(Bucket=bucket)
        yield found
    finally:
        server.stop()


def gpu_only(
    *names: str,
) -> Callable[[Callable[[Place], Iterator[Sheet]]], Callable[[Place], Iterator[Sheet]]]:
    """Decorate a check that needs a GPU: without one, its rows say so. names: those of its rows."""

    def decorate(check: Callable[[Place], Iterator[Sheet]]) -> Callable[[Place], Iterator[Sheet]]:
        @wraps(check)
        def checked(at: Place) -> Iterator[Sheet]:
            return check(at) if at.gpu else map(needs_gpu, names)

        return checked

    return decorate


@contextmanager
def standing(code: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program of Python that prints a line when it is ready, and then waits. The block's end kills it."""
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise CheckFailed(f"a program of Python ended with {process.wait()} before it was ready")
        yield process
    finally:
        process.kill()
        process.wait()


def upload(at: Place, folder: Path, bucket: str, prefix: str) -> str:
    """Send the files of a folder to the S3 server; return their URI."""
    client = _s3(at)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.upload_file(str(path), bucket, f"{prefix}/{path.relative_to(folder)}")
    return f"s3://{bucket}/{prefix}"


def _wait(process: subprocess.Popen[Any]) -> None:
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _s3(at: Place) -> Any:
    import boto3

    return boto3.client("s3", endpoint_url=at.endpoint)


def _installed_data() -> Path:
    from tests.fashion_mnist import folder

    return folder()


def _some(whole: Path, folder: Path) -> Path:
    """Write the first pictures of each split."""
    folder.mkdir()
    for split, count in _SMALL.items():
        for kind, head, item in (("images-idx3", ">4i", 28 * 28), ("labels-idx1", ">2i", 1)):
            name = f"{split}-{kind}-ubyte.gz"
            with gzip.open(whole / name) as file:
                first, _, *shape = struct.unpack(head, file.read(struct.calcsize(head)))
                content = struct.pack(head, first, count, *shape) + file.read(count * item)
            with gzip.open(folder / name, "wb", compresslevel=1) as file:
                file.write(content)
    return folder


def nvidia_smi(*words: str) -> list[str]:
    """Return the lines of nvidia-smi; none where there is no such program."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout.splitlines()
