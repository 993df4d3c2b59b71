"""`dtj tensorboard`: TensorBoard of a job, on this machine."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from dtj.api.errors import DtjError, TimedOut, Unreachable, Unusable
from dtj.cli.options import ContextOption, EndpointOption, JobNameOrUri, LocalOption, NamespaceOption
from dtj.cli.places import find
from dtj.cli.terminal import echo, errors
from dtj_trainer.contract.distribution import install_line

if TYPE_CHECKING:
    from dtj_trainer.tensorboard_pod import EventFiles

app = typer.Typer()
_HOST = "localhost"
_FIRST_PORT, _PORTS = 6006, 20
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0


@app.command()
def tensorboard(
    name: JobNameOrUri,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port of the web page; by default the first free port from 6006 on."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Fetch the event files once, and serve nothing.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the event files; by default a folder that is removed at the end.", metavar="DIR"
        ),
    ] = None,
    endpoint: EndpointOption = None,
    local: LocalOption = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Serve TensorBoard on this machine, with the event files of a job's bucket.

    The command fetches new events every few seconds until Ctrl-C. It needs the extra `tensorboard`.

    ```
    dtj tensorboard fashion-mnist
    dtj tensorboard fashion-mnist --once --folder ./events
    ```
    """
    if once and folder is None:
        raise Unusable("--once needs a folder for the files", "give --folder DIR")
    if not once and importlib.util.find_spec("tensorboard") is None:
        raise DtjError("TensorBoard is not installed", install_line("tensorboard"))
    place = find(name, local=local, namespace=namespace, context=context)
    with ExitStack() as stack:
        artifacts = stack.enter_context(place.artifacts(endpoint))
        where = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dtj-tensorboard-")))
        # Import here: the operator's image contains this module, but of dtj_trainer only the package `contract`.
        from dtj_trainer.tensorboard_pod import FETCH_SECONDS, EventFiles

        events = EventFiles(where, artifacts.ls, artifacts.get_growth)
        count = events.fetch()
        if once:
            echo(f"{count} event files of {name} are in {where}")
            return
        if not count:
            errors.print(f"{name} has no event files in its bucket yet")
        url = stack.enter_context(_served(where, port or _free_port()))
        errors.print(f"TensorBoard of {name} is at {url}; Ctrl-C ends it")
        _follow(events, FETCH_SECONDS)


def _follow(events: EventFiles, pause: float) -> None:
    """Fetch new events periodically. Print one message when the bucket stops answering."""
    reported = ""
    while True:
        time.sleep(pause)
        try:
            events.fetch()
            reported = ""
        except Unreachable as error:
            if error.message != reported:
                errors.print(error.message)
            reported = error.message


@contextmanager
def _served(folder: Path, port: int) -> Iterator[str]:
    """Run TensorBoard as a process for the duration of the block. Yield its URL after TensorBoard answers."""
    command = [sys.executable, "-m", "dtj_trainer.tensorboard_program", str(os.getpid())]
    command += [f"--logdir={folder}", f"--host={_HOST}", f"--port={port}"]
    # Convert SIGTERM into an exit, so that the block also ends TensorBoard.
    previous_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
        try:
            _await_answer(process, port, log)
            yield f"http://{_HOST}:{port}/"
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            signal.signal(signal.SIGTERM, previous_handler)


def _await_answer(process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        code = process.poll()
        if code is not None:
            log.seek(0)
            lines = log.read().decode(errors="replace").split("\n")
            last_line = next(
                (line for line in reversed(lines) if line.strip()), "TensorBoard printed nothing"
            )
            raise DtjError(f"TensorBoard ended with exit code {code}: {last_line}")
        try:
            socket.create_connection((_HOST, port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimedOut(f"TensorBoard does not answer after {_START_SECONDS:.0f} s")


def _free_port() -> int:
    for port in range(_FIRST_PORT, _FIRST_PORT + _PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return port
    raise DtjError(
        f"ports {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1} are taken", "choose another with --port"
    )
