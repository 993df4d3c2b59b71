"""Answers `GET /progress` with the report, `GET /metrics` with Prometheus text, and accepts `POST /stacks`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.request_server import RequestServer, head, send

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_REQUEST = re.compile(rb"(GET|POST) ([!-~]{1,200}) HTTP/1\.[01]\r\n")


class StatusServer:
    """An HTTP server, see `request_server`. It exposes no secrets. Its only action is a dump of stacks into the pod's
    own logs, at a limited rate.
    """

    def __init__(
        self,
        port: int,
        report: Callable[[], contract.Report],
        metrics: Callable[[], dict[str, float]],
        ask_for_stacks: Callable[[], None],
        host: str = "",
    ) -> None:
        """Listen. host: an address; empty: all addresses. Raises OSError for a port in use."""
        self._report = report
        self._metrics = metrics
        self._ask_for_stacks = ask_for_stacks
        self._server = RequestServer(host, port, self._answer, "status")

    def start(self) -> None:
        """Serve in the background."""
        self._server.start()

    def close(self) -> None:
        """Accept no more connections."""
        self._server.close()

    def _answer(self, connection: socket.socket, request: bytes, _: object) -> None:
        match = _REQUEST.match(request)
        asked = (match[1].decode(), match[2].decode()) if match else None
        if asked == ("GET", "/progress"):
            answer = 200, "application/json", json.dumps(self._report())
        elif asked == ("GET", "/metrics"):
            answer = 200, "text/plain; version=0.0.4", prometheus_text(self._metrics())
        elif asked == ("POST", contract.STACKS_PATH):
            self._ask_for_stacks()
            answer = 202, "text/plain", "stacks are written to the logs\n"
        elif asked:
            only = contract.STACKS_PATH if asked[0] == "POST" else "/progress and /metrics"
            answer = 404, "text/plain", f"only {only} {'is' if asked[0] == 'POST' else 'are'} here\n"
        else:
            answer = 400, "text/plain", "this is no request that is answered here\n"
        status, kind, text = answer
        content = text.encode()
        send(connection, head(status, len(content), f"Content-Type: {kind}\r\n") + content)


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
