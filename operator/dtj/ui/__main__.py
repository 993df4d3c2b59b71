"""The program of `dtj ui`: serves the page on loopback until Ctrl-C or SIGTERM.

`dtj.cli.ui` starts it as `python -m dtj.ui`.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from types import FrameType
from typing import NoReturn

import uvicorn

from dtj.api.errors import DtjError
from dtj.client import Client
from dtj.ui.app import application
from dtj.ui.sources import BucketSources, ClusterSources, JobSources

_HOST = "127.0.0.1"
_GRACE_SECONDS = 2
_EXIT_BY_DTJ_ERROR = "dtj ui: {}"


class PageServer(uvicorn.Server):
    """A server that prints its address as soon as it answers."""

    def __init__(self, config: uvicorn.Config, address: str, *, browser: bool) -> None:
        super().__init__(config)
        self._address, self._browser = address, browser

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        print(f"dtj ui: {self._address}", flush=True)
        if self._browser:
            webbrowser.open(self._address)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the page with the options of the command line."""
    options = _options(arguments)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _end)
    try:
        with _sources(options) as sources, socket.create_server((_HOST, options.port)) as listening:
            port, token = listening.getsockname()[1], secrets.token_urlsafe(32)
            config = uvicorn.Config(
                application(sources, token=token, port=port),
                # Use h11, which limits the size of headers. uvicorn would prefer httptools, which has no limit.
                http="h11",
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
            # Pass the token in the fragment of the URL: a browser does not send the fragment, so no log and no
            # Referer header contains the token.
            address = f"http://{_HOST}:{port}/#token={token}"
            PageServer(config, address, browser=options.browser).run(sockets=[listening])
    except DtjError as error:
        print(_EXIT_BY_DTJ_ERROR.format(error.message), file=sys.stderr)
        if error.remedy:
            print(f"     {error.remedy}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"dtj ui: can't listen on --port={options.port}: {error.strerror}", file=sys.stderr)
        sys.exit(2)


@contextmanager
def _sources(options: argparse.Namespace) -> Iterator[JobSources]:
    """Yield the sources of the page. A history that the user named needs no cluster. Raises DtjError."""
    if options.local:
        from dtj.local.runs import home
        from dtj.ui.machine_sources import MachineSources

        with closing(MachineSources(home(), options.namespace)) as machine:
            yield machine
        return
    with ExitStack() as stack:
        sources: JobSources
        try:
            client = stack.enter_context(Client(namespace=options.namespace, context=options.context))
            sources = ClusterSources(client, options.context, options.history)
        except DtjError as error:
            sources = BucketSources(options.history, options.namespace)
            if options.context or not sources.history:
                raise
            told = f"the page shows only the past jobs of {sources.history}: {error.message}"
            print(f"dtj ui: {told}", file=sys.stderr)
        yield sources


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dtj ui")
    parser.add_argument("--namespace")
    parser.add_argument("--context")
    parser.add_argument("--from", dest="history")
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--no-browser", dest="browser", action="store_false")
    return parser.parse_args(arguments)


def _end(signum: int, frame: FrameType | None) -> NoReturn:
    del signum, frame
    sys.exit(0)


if __name__ == "__main__":
    main()
