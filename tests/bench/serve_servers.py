"""The servers of `make bench-serve` as processes, which stand still while another one is measured."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.cluster.progress import note

ROOT = Path(__file__).parents[2]
CACHE = Path.home() / ".cache/dtj"
START_SECONDS = 300.0


class Server:
    """A running server: its port, and its processes to stop and go on."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port, self._process = port, process

    @contextmanager
    def going(self) -> Iterator[None]:
        """Let it run in the block; it stands still otherwise."""
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGSTOP)


def environment_of(name: str, pins: Sequence[str]) -> Path:
    """The folder of a rival's environment, which is made if needed. Raises RuntimeError."""
    folder = CACHE / f"bench-serve-{name}"
    made = folder / "made"
    if not made.exists() or made.read_text() != " ".join(pins):
        note(f"making the environment of {name}")
        python = str(folder / "bin/python")
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [python, "-m", "pip", "install", "--quiet", "--no-compile",
             "--constraint", str(ROOT / "constraints.txt"), *pins],
        ):  # fmt: skip
            ended = subprocess.run(command, capture_output=True, text=True)
            if ended.returncode:
                raise RuntimeError(last_line(ended.stderr))
        made.write_text(" ".join(pins))
    return folder


def last_line(text: str) -> str:
    """What a program said last."""
    return (text.strip() or "no output").splitlines()[-1]


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str], port: int, log: Path, answers: Callable[[int], bool], **environment: str
) -> Iterator[Server]:
    """Run a server in a process group of its own until the block's end. Raises RuntimeError if it does not answer."""
    path = os.pathsep.join((str(ROOT / "trainer"), str(ROOT / "operator"), str(ROOT)))
    with log.open("wb") as output:
        process = _start(command, output, {**os.environ, "PYTHONPATH": path, **environment})
    server = Server(port, process)
    try:
        end = time.monotonic() + START_SECONDS
        while not answers(port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{command[0]} does not answer: {last_line(log.read_text())}")
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGSTOP)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _start(
    command: Sequence[str], output: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def listens(port: int) -> bool:
    """Whether a server takes connections."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def dtj(models: Mapping[str, Path], threads: int, log: Path, *options: str) -> AbstractContextManager[Server]:
    """`dtj serve` with models by name."""
    port = free_port()
    named = [f"{name}={folder}" for name, folder in models.items()]
    words = ["-m", "dtj_trainer.serving.serve", f"--port={port}", f"--threads={threads}", "--pin", *options]
    return running([sys.executable, *words, *named], port, log, listens)


def minimal(folder: Path, threads: int, log: Path) -> AbstractContextManager[Server]:
    """The minimal server."""
    port = free_port()
    words = ["-m", "tests.bench.serve_asgi", str(port), str(threads), str(folder)]
    return running([sys.executable, *words], port, log, listens)
