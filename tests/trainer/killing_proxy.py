"""A proxy in front of the S3 server that calls a function at one request, for a test that kills the client there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from tests.trainer.s3_proxy import ProxyHandler, ProxyServer, serving

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

    def __init__(self, moment: AtRequest | None, kill: Callable[[], bool]) -> None:
        """kill: called once, at the moment; returns whether the client is dead."""
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


class _Handler(ProxyHandler):
    proxy: Proxy

    def _pass_on(self) -> None:
        self.close_connection = True
        with suppress(ConnectionError):
            self.close_connection = not self._passed_on()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def _passed_on(self) -> bool:
        """Pass on a request and its answer; whether the client lives."""
        when = self.proxy.moment_of(self.command, self.path)
        assert "Transfer-Encoding" not in self.headers, "bodies in chunks are not passed on"
        if when == "before" and self.proxy.kill():
            return False
        answer = self.ask(self._halves(killed_between=when == "half" and self.command != "GET"))
        if when == "after" and self.proxy.kill():
            return False
        self.begin_answer(answer)
        first = len(answer.content) // 2
        self.wfile.write(answer.content[:first])
        if when == "half" and self.command == "GET" and self.proxy.kill():
            return False
        self.wfile.write(answer.content[first:])
        return True

    def _halves(self, *, killed_between: bool) -> Iterator[bytes]:
        first = self.size // 2
        yield self.rfile.read(first)
        if killed_between and self.proxy.kill():
            raise ConnectionAbortedError("the client is dead")
        yield self.rfile.read(self.size - first)


class _Server(ProxyServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # A kill breaks connections.
            super().handle_error(request, client_address)


@contextmanager
def proxied(upstream: str, moment: AtRequest | None, kill: Callable[[], bool]) -> Iterator[str]:
    """Serve until the end of the block; yield the endpoint. See Proxy."""

    handler = type(
        "Handler", (_Handler,), {"upstream": urlsplit(upstream).netloc, "proxy": Proxy(moment, kill)}
    )
    with serving(_Server(("127.0.0.1", 0), handler)) as endpoint:
        yield endpoint
