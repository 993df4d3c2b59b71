"""Serves GET /metrics of the operator's process, in the leader and in replicas that wait.

The server runs in threads, so it answers while the event loop is busy. Any pod may reach the port, so the server
limits the number and time of connections, and answers simultaneous requests with one text.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import choose_encoder, gzip_accepted

_log = logging.getLogger(__name__)
MOST_CONNECTIONS = 16
_SECONDS = 5.0
"""The longest wait, in seconds, for a client that sends or reads nothing."""
_KEPT_SECONDS = 1.0
Start = Callable[[str, list[tuple[str, str]]], object]
Answer = tuple[str, list[tuple[str, str]], list[bytes]]


def serve_metrics(port: int, registry: CollectorRegistry) -> None:
    """Answer on all addresses of IPv4 and IPv6 until the process ends. Raises OSError when the port is in use."""
    both = socket.has_dualstack_ipv6()
    host, kind = ("::", _BothFamilies) if both else ("0.0.0.0", _Server)  # noqa: S104 - Prometheus asks from outside
    server = make_server(host, port, Page(registry), server_class=kind, handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


class Page:
    """The WSGI application. It generates one text at a time, and sends each text to all clients within one second."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._app = make_wsgi_app(registry)
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, bool], tuple[float, Answer]] = {}

    def __call__(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        """Answer a request. Parameters of the query are ignored."""
        form = choose_encoder(environ.get("HTTP_ACCEPT") or "")[1]
        key = form, gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING") or "")
        if environ["REQUEST_METHOD"] == "GET":
            with self._lock:
                status, headers, body = self._answer(key, environ)
        else:
            status, headers, body = self._made(environ)
        start_response(status, headers)
        return body

    def _answer(self, key: tuple[str, bool], environ: dict[str, Any]) -> Answer:
        now = time.monotonic()
        self._kept = {each: kept for each, kept in self._kept.items() if now - kept[0] < _KEPT_SECONDS}
        if key not in self._kept:
            self._kept[key] = now, self._made({**environ, "QUERY_STRING": "", "PATH_INFO": "/metrics"})
        return self._kept[key][1]

    def _made(self, environ: dict[str, Any]) -> Answer:
        begun: list[tuple[str, list[tuple[str, str]]]] = []
        try:
            body = list(self._app(environ, lambda status, headers: begun.append((status, headers))))
        except Exception:
            _log.exception("GET /metrics: the metrics can't be generated")
            raise
        return *begun[0], body


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, str] = {}
        """The address of each connection, the oldest first."""
        self._ending: set[socket.socket] = set()
        """Connections that the server has shut down, and whose threads have not ended yet."""
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread. Above MOST_CONNECTIONS, close the oldest connection of the address that has most."""
        with self._lock:
            taken = len(self._ending) < MOST_CONNECTIONS
            if taken:
                self._open[request] = client_address[0]
            if len(self._open) > MOST_CONNECTIONS:
                self._cut_one()
        if taken:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _cut_one(self) -> None:
        (most, _), *_ = Counter(self._open.values()).most_common(1)
        oldest = next(each for each, address in self._open.items() if address == most)
        del self._open[oldest]
        self._ending.add(oldest)
        try:
            oldest.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # The client has closed the connection.

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that was answered or refused, or that was cut."""
        with self._lock:
            self._open.pop(request, None)
            self._ending.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about an error of a connection: clients may disconnect at any time."""


class _BothFamilies(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Quiet(WSGIRequestHandler):
    timeout = _SECONDS

    def get_stderr(self) -> io.StringIO:
        """Return a stream that discards the server's message about a client that has disconnected."""
        return io.StringIO()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log no line for a scrape."""
