"""GET /metrics of the operator's process, in a leader and in a replica that waits.

The server runs in a thread, so it answers while the event loop is busy.
"""

from __future__ import annotations

import socket
import threading
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app


def serve_metrics(port: int, registry: CollectorRegistry) -> None:
    """Answer on all addresses of IPv4 and IPv6 until the process ends. Raises OSError when the port is in use."""
    both = socket.has_dualstack_ipv6()
    host, kind = ("::", _BothFamilies) if both else ("0.0.0.0", _Server)  # noqa: S104 - Prometheus asks from outside
    server = make_server(host, port, make_wsgi_app(registry), server_class=kind, handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _BothFamilies(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log no line for a scrape."""
