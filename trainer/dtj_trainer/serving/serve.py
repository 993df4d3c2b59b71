"""Serve models over HTTP.

NAME=FOLDER or NAME=URI is a model that `dtj export` wrote, or the job that has it. The server has TorchServe's routes
(/models, /predictions/NAME) and the Open Inference Protocol (/v2), and looks for newer versions of its models. It
listens on this machine alone unless --host says otherwise. Requests need the bearer token of DTJ_SERVE_TOKEN or
--token-file, if there is one.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import uvicorn

from dtj_trainer import contract
from dtj_trainer.serving import places
from dtj_trainer.serving.app import application
from dtj_trainer.serving.batching import Limits
from dtj_trainer.serving.connections import prompt
from dtj_trainer.serving.errors import ServingError, exit_on_error
from dtj_trainer.serving.metrics import Metrics
from dtj_trainer.serving.service import RequestLimits, Service
from dtj_trainer.serving.shelf import Slot, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from socket import socket
    from types import FrameType

ENV_ACCESS = "DTJ_SERVE_TOKEN"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_GRACE_SECONDS = 30
_KEEP_ALIVE_SECONDS = 60
_MEBIBYTE = 1 << 20


class Misconfigured(ServingError):
    """An option can't be."""

    exit_code = contract.EXIT_CONFIG


@dataclass(frozen=True)
class Options:
    """The command line. `poll` is None if versions are kept."""

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


class Server(uvicorn.Server):
    """Tells its address once it listens."""

    def __init__(self, config: uvicorn.Config, names: Sequence[str]) -> None:
        super().__init__(config)
        self._names = names

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"dtj serve: http://{shown}:{port} has {', '.join(self._names)}", flush=True)


@contextmanager
def prepared(options: Options) -> Iterator[Server]:
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
        host=options.host,
        port=options.port,
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
        yield Server(config, list(slots))
    finally:
        if watch:
            watch.close()
        service.close()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="dtj serve", description=__doc__)
    made.add_argument(
        "models", nargs="+", metavar="NAME=FOLDER|URI", help="a name of your choice, and the model or its job"
    )
    made.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all (default: %(default)s)"
    )
    made.add_argument("--port", type=int, default=8080, help="0 for any that is free (default: %(default)s)")
    made.add_argument(
        "--max-batch", type=int, default=32, metavar="N", help="examples of a batch (default: %(default)s)"
    )
    made.add_argument(
        "--max-delay",
        type=float,
        default=2.0,
        metavar="MS",
        help="milliseconds that a batch waits for more requests, if there are several clients (default: %(default)s)",
    )
    made.add_argument(
        "--max-waiting",
        type=int,
        default=256,
        metavar="N",
        help="requests at the same time; others get 429 (default: %(default)s)",
    )
    made.add_argument(
        "--max-body",
        type=int,
        default=16,
        metavar="MIB",
        help="MiB of a request's body (default: %(default)s)",
    )
    made.add_argument(
        "--max-json", type=int, default=4, metavar="MIB", help="MiB of JSON in a body (default: %(default)s)"
    )
    made.add_argument(
        "--max-held",
        type=int,
        default=64,
        metavar="MIB",
        help="MiB of all requests at the same time; others get 429 (default: %(default)s)",
    )
    made.add_argument(
        "--max-pixels",
        type=int,
        default=16_000_000,
        metavar="N",
        help="pixels of a picture (default: %(default)s)",
    )
    made.add_argument(
        "--max-connections", type=int, default=1000, metavar="N", help="others get 503 (default: %(default)s)"
    )
    made.add_argument(
        "--body-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds in which a request has to arrive (default: %(default)s)",
    )
    made.add_argument("--threads", type=int, help="of one run of a model; by default one a processor")
    made.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="models that run at the same time, --threads each (default: %(default)s)",
    )
    made.add_argument(
        "--poll",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds between looks for a newer version (default: %(default)s)",
    )
    made.add_argument("--pin", action="store_true", help="keep the versions of the start")
    made.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the bearer token, in place of {ENV_ACCESS}",
    )
    return made


def read_options(arguments: Sequence[str] | None) -> Options:
    """Read the command line. Raises Misconfigured, which names the option."""
    given = parser().parse_args(arguments)
    for name in (
        "max_batch",
        "max_waiting",
        "max_body",
        "max_json",
        "max_held",
        "max_pixels",
        "max_connections",
        "workers",
        "poll",
        "body_timeout",
    ):
        if getattr(given, name) <= 0:
            raise Misconfigured(f"--{name.replace('_', '-')}={getattr(given, name)} has to be above 0")
    if given.max_delay < 0:
        raise Misconfigured(f"--max-delay={given.max_delay} has to be 0 or above")
    if given.threads is not None and given.threads < 1:
        raise Misconfigured(f"--threads={given.threads} has to be above 0")
    if given.max_held < given.max_body:
        raise Misconfigured(f"--max-held={given.max_held} has to be at least --max-body={given.max_body}")
    return Options(
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
        _token(given.token_file),
    )


def _models(given: Sequence[str]) -> dict[str, str]:
    models: dict[str, str] = {}
    for one in given:
        name, equals, uri = one.partition("=")
        if not equals or not uri or not _NAME.fullmatch(name):
            raise Misconfigured(
                f"{one!r} has to be NAME=FOLDER or NAME=URI; a name has at most 63 letters, digits, '.', '_' and '-'"
            )
        if name in models:
            raise Misconfigured(f"the name {name} is given twice")
        models[name] = uri
    return models


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


def _end(signum: int, frame: FrameType | None) -> NoReturn:
    del signum, frame
    sys.exit(0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve as the command line says. Ends with 0 after SIGTERM and SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # Its warnings are about requests that are no HTTP.
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(
            each, _end
        )  # uvicorn has handlers of its own while it serves, and passes the signal on.
    with exit_on_error():
        options = read_options(arguments)
        if options.token is None and options.host not in ("127.0.0.1", "::1", "localhost"):
            logging.getLogger(__name__).warning(
                "%s is open to all who reach it: %s or --token-file asks for a token",
                options.host,
                ENV_ACCESS,
            )
        with prepared(options) as server:
            server.run()


if __name__ == "__main__":
    main()
