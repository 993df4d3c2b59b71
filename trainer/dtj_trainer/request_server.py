"""Answers short HTTP requests of unknown clients: without a NetworkPolicy, the whole cluster reaches a pod's ports.

A request is short and has a deadline, and so has the answer. Few are handled at a time; others wait in the queue of
the socket. Clients that leave, or send something else, are not logged.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

REQUESTS = 64
"""Requests that are read at a time."""
REQUEST_SECONDS = 5.0
REQUEST_BYTES = 8192
_BACKLOG = 4096
_PAUSE_SECONDS = 0.1
_REASONS = {
    200: "OK",
    202: "Accepted",
    206: "Partial Content",
    400: "Bad Request",
    404: "Not Found",
    416: "Range Not Satisfiable",
    429: "Too Many Requests",
}


class RequestServer:
    """A listener and its threads. Each connection has one request."""

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[socket.socket, bytes, Callable[[], None]], None],
        name: str,
    ) -> None:
        """Listen. Raises OSError.

        host: an address; empty: all addresses. answer: gets the connection, which does not block, the request up to
        its empty line, and a function. That function lets the server accept another request before `answer` ends.
        """
        self._answer = answer
        self._name = name
        self._requests = threading.BoundedSemaphore(REQUESTS)
        self._listener = _listen(host, port)

    def start(self) -> None:
        """Serve in the background."""
        threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            self._requests.acquire()
            try:
                connection, _ = self._listener.accept()
                try:
                    threading.Thread(
                        target=self._handle, args=(connection,), name=f"{self._name} request", daemon=True
                    ).start()
                except RuntimeError:  # The system has no room for another thread.
                    connection.close()
                    raise
            except (OSError, RuntimeError) as error:
                self._requests.release()
                if self._listener.fileno() < 0:
                    return
                log.debug("a connection to the port of %s failed: %s", self._name, error)
                time.sleep(_PAUSE_SECONDS)  # Pause: for example, too many files may be open.

    def _handle(self, connection: socket.socket) -> None:
        waiting = [self._requests.release]

        def let_next_in() -> None:
            while waiting:
                waiting.pop()()

        with connection, suppress(OSError):
            try:
                connection.setblocking(False)
                self._answer(connection, _read_request(connection), let_next_in)
            finally:
                let_next_in()


def head(status: int, length: int = 0, more: str = "") -> bytes:
    """Return the head of an answer. more: further header lines, each with its CRLF."""
    lines = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {length}\r\n{more}"
    return f"{lines}Connection: close\r\n\r\n".encode()


def send(connection: socket.socket, content: bytes) -> None:
    """Send all within REQUEST_SECONDS. Raises OSError, TimeoutError among them."""
    deadline = time.monotonic() + REQUEST_SECONDS
    left = memoryview(content)
    while left:
        try:
            left = left[connection.send(left) :]
        except BlockingIOError:
            wait(connection, selectors.EVENT_WRITE, deadline)


def wait(connection: socket.socket, event: int, deadline: float) -> None:
    """Return when the connection is ready. Raises TimeoutError at the deadline."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, event)
        left = deadline - time.monotonic()
        if left <= 0 or not selector.select(left):
            raise TimeoutError("the client was too slow to send a request or to read its answer")


def _listen(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        with suppress(OSError):  # This machine may have no IPv6.
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
    return socket.create_server((host, port), backlog=_BACKLOG)


def _read_request(connection: socket.socket) -> bytes:
    """Return a request up to its empty line. Raises TimeoutError, and OSError for an incomplete or long request."""
    deadline, received = time.monotonic() + REQUEST_SECONDS, b""
    while b"\r\n\r\n" not in received:
        wait(connection, selectors.EVENT_READ, deadline)
        with suppress(BlockingIOError):
            block = connection.recv(REQUEST_BYTES)
            received += block
            if not block or len(received) > REQUEST_BYTES:
                raise ConnectionError("the client sent no complete request")
    return received
