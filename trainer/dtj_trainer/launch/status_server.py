"""Answers `GET /progress` with the report, `GET /metrics` with Prometheus text, and accepts `POST /stacks`."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from dtj_trainer import contract

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS = 10


class StatusServer:
    """An HTTP server on all addresses of the pod. It exposes no secrets. Its only action is a dump of stacks into the
    pod's own logs, at a limited rate.
    """

    def __init__(
        self,
        port: int,
        report: Callable[[], contract.Report],
        metrics: Callable[[], dict[str, float]],
        ask_for_stacks: Callable[[], None],
    ) -> None:
        """Raises OSError for a port in use."""

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_TIMEOUT_SECONDS
            server_version = "dtj"
            sys_version = ""

            def do_GET(self) -> None:
                if self.path == "/progress":
                    self._answer(200, "application/json", json.dumps(report()))
                elif self.path == "/metrics":
                    self._answer(200, "text/plain; version=0.0.4", prometheus_text(metrics()))
                else:
                    self._answer(404, "text/plain", "only /progress and /metrics are here\n")

            def do_POST(self) -> None:
                if self.path == contract.STACKS_PATH:
                    ask_for_stacks()
                    self._answer(202, "text/plain", "stacks are written to the logs\n")
                else:
                    self._answer(404, "text/plain", f"only {contract.STACKS_PATH} is here\n")

            def _answer(self, status: int, kind: str, text: str) -> None:
                content = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Do not log requests, because the operator polls."""

        self._server = _listen(port, Handler)

    def start(self) -> None:
        """Serve in the background."""
        threading.Thread(target=self._server.serve_forever, name="status", daemon=True).start()


def _listen(port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    class BothFamilies(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6

        def server_bind(self) -> None:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            super().server_bind()

    class OnlyIPv4(ThreadingHTTPServer):
        daemon_threads = True

    if socket.has_dualstack_ipv6():
        try:
            return BothFamilies(("::", port), handler)
        except OSError as error:
            log.debug("no IPv6 here: %s", error)
    return OnlyIPv4(("0.0.0.0", port), handler)  # noqa: S104 - the operator asks from outside the pod


def prometheus_text(values: dict[str, float]) -> str:
    """Format gauges, and counters where the name ends in `_total`, in Prometheus' text format.

    values: by series, such as `dtj_step` or `dtj_program_cpu_cores{program="0"}`; those of a name follow each other.
    """
    lines = []
    last = ""
    for series, value in values.items():
        name = series.partition("{")[0]
        if name != last:
            lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines.append(f"{series} {value!r}")
        last = name
    return "\n".join(lines) + "\n"
