"""The parts of a proxy in front of an S3 server: it asks the server, and answers the client."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
"""Headers that do not pass: each connection has its own."""


@dataclass(frozen=True)
class Answer:
    """An answer of the server. headers: without those of the connection. length: the header Content-Length."""

    status: int
    headers: list[tuple[str, str]]
    content: bytes
    length: str | None = None

    @staticmethod
    def of(response: http.client.HTTPResponse) -> Answer:
        headers = [(n, v) for n, v in response.getheaders() if n.lower() not in OF_THE_CONNECTION]
        return Answer(response.status, headers, response.read(), response.getheader("Content-Length"))


class ProxyHandler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    upstream: str
    """Host and port of the server."""

    @property
    def size(self) -> int:
        """The bytes of the request's body."""
        return int(self.headers.get("Content-Length") or 0)

    def ask(self, body: Iterable[bytes]) -> Answer:
        """Pass on the request with this body. Its signature covers the headers, Host among them."""
        with closing(http.client.HTTPConnection(self.upstream)) as server:
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    server.putheader(name, value)
            server.endheaders()
            for block in body:
                server.send(block)
            return Answer.of(server.getresponse())

    def begin_answer(self, answer: Answer) -> None:
        """Send the head of an answer."""
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if answer.status != 204:
            length = answer.length if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(answer.content)))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class ProxyServer(ThreadingHTTPServer):
    """The server of a proxy."""

    daemon_threads = True
    request_queue_size = 64


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Serve until the end of the block; yield the endpoint."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
