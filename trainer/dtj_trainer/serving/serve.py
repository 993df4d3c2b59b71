"""Serve models over HTTP: the program of `dtj serve`, whose options `serve_options` has."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import uvicorn

from dtj_trainer.contract.serve_options import ENV_ACCESS
from dtj_trainer.serving import places
from dtj_trainer.serving.app import application
from dtj_trainer.serving.connections import prompt
from dtj_trainer.serving.errors import exit_on_error
from dtj_trainer.serving.heap import give_back_large_blocks
from dtj_trainer.serving.metrics import Metrics
from dtj_trainer.serving.serve_options import Misconfigured, Options, read_options
from dtj_trainer.serving.service import Service
from dtj_trainer.serving.shelf import Slot, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

_GRACE_SECONDS = 30
_KEEP_ALIVE_SECONDS = 60


class Server(uvicorn.Server):
    """Tells its address once it answers at the socket."""

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
        """The port that it listens on."""
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
        raise Misconfigured(f"--host={host} --port={port} can't be listened on: {reason}") from error


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
            yield Server(config, list(slots), listening)
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
