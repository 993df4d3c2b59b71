"""A proxy in front of the S3 server that calls a function at one request, for a test that kills the client there."""

from __future__ import annotations

import http.client
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

What = Literal["file", "manifest", "read"]
When = Literal["before", "half", "after"]


@dataclass(frozen=True)
class AtRequest:
    """A moment of a request below the checkpoints.

    what: a write of a file or of its part, a write of a manifest, or a read. number: which of these; 1 is the first.
    when: before the request reaches the store; after half of the content; before the answer reaches the client.
    """

    what: What
    number: int
    when: When

    def is_of(self, method: str, path: str) -> bool:
        parts = urlsplit(path)
        if "/checkpoints/" not in parts.path or "list-type" in parts.query:
            return False
        if self.what == "read":
            return method == "GET"
        is_manifest = parts.path.endswith("/manifest.json")
        return method in ("PUT", "POST") and is_manifest == (self.what == "manifest")


class Proxy:
    """The state of a running proxy."""

    def __init__(self, upstream: str, moment: AtRequest | None, kill: Callable[[], bool]) -> None:
        """kill: called once, at the moment; returns whether the client is dead."""
        self.upstream = urlsplit(upstream).netloc
        self.kill = kill
        self._moment = moment
        self._lock = threading.Lock()
        self._seen = 0

    def moment_of(self, method: str, path: str) -> When | None:
        """When to kill at this request; None: not at this one."""
        moment = self._moment
        if moment is None or not moment.is_of(method, path):
            return None
        with self._lock:
            self._seen += 1
            return moment.when if self._seen == moment.number else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def _pass_on(self) -> None:
        with suppress(ConnectionError):
            self.close_connection = not self._passed_on()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def _passed_on(self) -> bool:
        """Pass on a request and its answer; whether the client lives."""
        when = self.proxy.moment_of(self.command, self.path)
        assert "Transfer-Encoding" not in self.headers, "bodies in chunks are not passed on"
        size = int(self.headers.get("Content-Length") or 0)
        if when == "before" and self.proxy.kill():
            return False
        with closing(http.client.HTTPConnection(self.proxy.upstream)) as store:
            # The signature covers the headers, Host among them.
            store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    store.putheader(name, value)
            store.endheaders(self.rfile.read(size // 2))
            if when == "half" and self.command != "GET" and self.proxy.kill():
                return False
            store.send(self.rfile.read(size - size // 2))
            answer = store.getresponse()
            content = answer.read()
        if when == "after" and self.proxy.kill():
            return False
        return self._answered(answer, content, half=when == "half" and self.command == "GET")

    def _answered(self, answer: http.client.HTTPResponse, content: bytes, *, half: bool) -> bool:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        first = len(content) // 2
        self.wfile.write(content[:first])
        if half and self.proxy.kill():
            return False
        self.wfile.write(content[first:])
        return True

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # A kill breaks connections.
            super().handle_error(request, client_address)


@contextmanager
def proxied(upstream: str, moment: AtRequest | None, kill: Callable[[], bool]) -> Iterator[str]:
    """Serve until the end of the block; yield the endpoint. See Proxy."""

    class Handler(_Handler):
        proxy = Proxy(upstream, moment, kill)

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
