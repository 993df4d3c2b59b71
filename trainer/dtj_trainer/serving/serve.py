"""Serve models over HTTP: the program of `dtj serve`, and its options."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import uvicorn

from dtj_trainer import contract
from dtj_trainer.contract.program_options import add_options
from dtj_trainer.contract.serve_options import ABOUT_MODELS, ENV_ACCESS, MODELS, OPTIONS, named_models
from dtj_trainer.serving import places
from dtj_trainer.serving.app import application
from dtj_trainer.serving.batching import Limits
from dtj_trainer.serving.connection_limits import prompt
from dtj_trainer.serving.errors import ServingError, exit_on_error
from dtj_trainer.serving.heap import give_back_large_blocks
from dtj_trainer.serving.metrics import Metrics
from dtj_trainer.serving.service import RequestLimits, Service, Slot, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType


ABOUT = """Serve models over HTTP.

NAME=FOLDER or NAME=URI is a model that `dtj export` wrote, or the job that has it. The server has TorchServe's routes
(/models, /predictions/NAME) and the Open Inference Protocol (/v2), and looks for newer versions of its models. It
listens on this machine alone unless --host says otherwise. Requests need the bearer token of DTJ_SERVE_TOKEN or
--token-file, if there is one.
"""
_MEBIBYTE = 1 << 20


class Misconfigured(ServingError):
    """An option has a value that can't be used."""

    exit_code = contract.EXIT_CONFIG


@dataclass(frozen=True)
class ServeOptions:
    """The command line. `poll`: seconds between checks for newer models; None: keep the first versions."""

    models: dict[str, str]
    host: str
    port: int
    batching: Limits
    requests: RequestLimits
    connections: int
    threads: int
    workers: int
    poll: float | None
    token: str | None


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="dtj serve", description=ABOUT)
    made.add_argument("models", nargs="+", metavar=MODELS, help=ABOUT_MODELS)
    add_options(made, OPTIONS)
    return made


def read_options(arguments: Sequence[str] | None) -> ServeOptions:
    """Read the command line. Raises Misconfigured, which names the option."""
    given = parser().parse_args(arguments)
    for option in OPTIONS:
        value = getattr(given, option.key)
        if value is not None and (fault := option.fault(value)):
            raise Misconfigured(fault)
    if given.max_held < given.max_body:
        raise Misconfigured(f"--max-held={given.max_held} has to be at least --max-body={given.max_body}")
    return ServeOptions(
        _models(given.models),
        given.host,
        given.port,
        Limits(given.max_batch, given.max_delay / 1000, max(given.max_waiting, given.max_batch)),
        RequestLimits(
            given.max_body * _MEBIBYTE,
            given.max_json * _MEBIBYTE,
            given.body_timeout,
            given.max_pixels,
            given.max_batch,
            given.max_waiting,
            given.max_held * _MEBIBYTE,
        ),
        given.max_connections,
        given.threads or len(os.sched_getaffinity(0)),
        given.workers,
        None if given.pin else given.poll,
        _token(given.token_file and Path(given.token_file)),
    )


def _models(given: Sequence[str]) -> dict[str, str]:
    try:
        return named_models(given)
    except ValueError as error:
        raise Misconfigured(str(error)) from error


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(ENV_ACCESS) or None
    try:
        token = file.read_text().strip()
    except (OSError, ValueError) as error:
        raise Misconfigured(f"--token-file={file} can't be read: {error}") from error
    if not token:
        raise Misconfigured(f"--token-file={file} is empty")
    return token


_GRACE_SECONDS = 30
_KEEP_ALIVE_SECONDS = 60


class ModelServer(uvicorn.Server):
    """Prints its address once it answers at the socket."""

    def __init__(self, config: uvicorn.Config, names: Sequence[str], listening: socket.socket) -> None:
        super().__init__(config)
        self._names, self._listening = names, listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets or [self._listening])
        host = self._listening.getsockname()[0]
        shown = f"[{host}]" if ":" in host else host
        print(f"dtj serve: http://{shown}:{self.port} has {', '.join(self._names)}", flush=True)

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        port: int = self._listening.getsockname()[1]
        return port


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises Misconfigured.

    `::` is all addresses of both families, and those of IPv4 on a machine without IPv6.
    """
    if host == "::" and not socket.has_dualstack_ipv6():
        host = ""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Misconfigured(f"the server can't listen on --host={host} --port={port}: {reason}") from error


@contextmanager
def running_server(options: ServeOptions) -> Iterator[ModelServer]:
    """Load the models; yield a server that answers while it runs. Raises ServingError if a model can't be loaded."""
    metrics = Metrics()
    runs = threading.Semaphore(options.workers)
    slots = {
        name: Slot(name, places.find(uri), options.batching, runs, options.threads, metrics)
        for name, uri in options.models.items()
    }
    service = Service(slots, options.requests, metrics, decoders=max(2, options.threads))
    watch = Watch(slots, options.poll) if options.poll else None
    config = uvicorn.Config(
        application(service, options.token),
        http=prompt(options.requests.body_seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=options.connections,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    try:
        with _listen(options.host, options.port) as listening:
            yield ModelServer(config, list(slots), listening)
    finally:
        if watch:
            watch.close()
        service.close()


def _end(signum: int, frame: FrameType | None) -> NoReturn:
    del signum, frame
    sys.exit(0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve as the command line says. Ends with 0 after SIGTERM and SIGINT."""
    give_back_large_blocks()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # uvicorn warns of requests that are no HTTP.
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)
    for each in (signal.SIGTERM, signal.SIGINT):
        # While uvicorn serves, it has handlers of its own, and passes the signal on to these.
        signal.signal(each, _end)
    with exit_on_error():
        options = read_options(arguments)
        if options.token is None and options.host not in ("127.0.0.1", "::1", "localhost"):
            logging.getLogger(__name__).warning(
                "everyone who reaches %s can use this server: set %s or --token-file to require a token",
                options.host,
                ENV_ACCESS,
            )
        with running_server(options) as server:
            server.run()


if __name__ == "__main__":
    main()
