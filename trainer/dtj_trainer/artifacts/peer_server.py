"""Gives files of the restored checkpoint to the job's other pods, and tells them from which pods to get one.

    GET  /checkpoints/<sha256>               the file, or its rest with `Range: bytes=<start>-`
    POST /checkpoints/<sha256>/askers/<pod>  JSON: {"pods": [<number of a pod>, …]}

Anybody in the cluster may connect where no NetworkPolicy is enforced. So a request is short and has a deadline, a
slow reader is cut off, and threads are limited; a pod that gets no connection reads from the bucket.
"""

from __future__ import annotations

import json
import logging
import os
import re
import selectors
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.offered_files import OfferedFiles
from dtj_trainer.artifacts.peer_askers import Askers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtj_trainer.artifacts.offered_files import OpenedFile
    from dtj_trainer.artifacts.peer_hosts import PeerHosts

log = logging.getLogger(__name__)

REQUESTS = 64
"""Requests that are read at a time. Others wait in the queue of the socket."""
TRANSFERS = 16
TRANSFERS_OF_A_FILE = 4
"""Two for the pods below this one in the tree, and two for those whose own source has failed."""
REQUEST_SECONDS = 5.0
ARRIVAL_SECONDS = 20.0
"""A transfer ends when the file that this pod fetches itself has no more bytes for so long."""
SLOW_SECONDS, SLOW_BYTES_PER_SECOND = 20.0, 1e6
"""A reader may block a transfer for so many seconds, and for the time of its bytes at this speed."""
_REQUEST_BYTES = 4096
_PIECE_BYTES = 2**20
_BACKLOG = 4096
_PAUSE_SECONDS = 0.1
_REQUEST = re.compile(
    rb"(?:GET /checkpoints/(?P<file>[0-9a-f]{64})|"
    rb"POST /checkpoints/(?P<of>[0-9a-f]{64})/askers/(?P<asker>[0-9]{1,7})) HTTP/1\.[01]\r\n"
)
_RANGE = re.compile(rb"\r\nrange: *bytes=([0-9]{1,18})-\r\n", re.IGNORECASE)
_REASONS = {
    200: "OK",
    206: "Partial Content",
    400: "Bad Request",
    404: "Not Found",
    416: "Range Not Satisfiable",
    429: "Too Many Requests",
}


class PeerServer:
    """The server of one pod, in threads of its own."""

    def __init__(self, hosts: PeerHosts) -> None:
        """Listen. Raises OSError."""
        self.files = OfferedFiles()
        self._askers = Askers()
        self._pods = hosts.pods.count
        self._requests = threading.BoundedSemaphore(REQUESTS)
        self._lock = threading.Lock()
        self._transfers: Counter[str] = Counter()
        self._listener = _listen(hosts.listen, hosts.port)

    def start(self) -> None:
        """Serve in the background."""
        threading.Thread(target=self._serve, name="peers", daemon=True).start()

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
                        target=self._answer, args=(connection,), name="peer", daemon=True
                    ).start()
                except RuntimeError:  # No more threads.
                    connection.close()
                    raise
            except (OSError, RuntimeError) as error:
                self._requests.release()
                if self._listener.fileno() < 0:
                    return
                log.debug("a connection of another pod failed: %s", error)
                time.sleep(_PAUSE_SECONDS)  # For example too many open files.

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setblocking(False)
            try:
                request = _read_request(connection)
                match = _REQUEST.match(request)
                if match and match["asker"] and int(match["asker"]) < self._pods:
                    self._tell_sources(connection, match["of"].decode(), int(match["asker"]))
                    return
            finally:
                self._requests.release()
            if match and match["file"]:
                self._give(connection, match["file"].decode(), _RANGE.search(request))
            else:
                _send(connection, _head(400))

    def _tell_sources(self, connection: socket.socket, sha256: str, pod: int) -> None:
        body = json.dumps({"pods": self._askers.ask(sha256, pod)}).encode()
        _send(connection, _head(200, len(body)) + body)

    def _give(self, connection: socket.socket, sha256: str, rest: re.Match[bytes] | None) -> None:
        with self._transfer(sha256) as free:
            if not free:
                _send(connection, _head(429))
                return
            with self.files.opened(sha256) as file:
                start = int(rest[1]) if rest else 0
                if file is None:
                    _send(connection, _head(404))
                elif start >= file.size:
                    _send(connection, _head(416))
                else:
                    span = f"Content-Range: bytes {start}-{file.size - 1}/{file.size}\r\n"
                    status = (206, span) if rest else (200, "")
                    _send(connection, _head(status[0], file.size - start, status[1]))
                    _give_from(connection, file, start)

    @contextmanager
    def _transfer(self, sha256: str) -> Iterator[bool]:
        with self._lock:
            # A Counter that is asked does not grow.
            free = self._transfers.total() < TRANSFERS and self._transfers[sha256] < TRANSFERS_OF_A_FILE
            if free:
                self._transfers[sha256] += 1
        try:
            yield free
        finally:
            if free:
                with self._lock:
                    self._transfers[sha256] -= 1
                    self._transfers += Counter()  # Without those at 0.


def _listen(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        with suppress(OSError):  # No IPv6 here.
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
    return socket.create_server((host, port), backlog=_BACKLOG)


def _read_request(connection: socket.socket) -> bytes:
    """Return a request up to its empty line. Raises TimeoutError, and OSError for a request that is none."""
    deadline, received = time.monotonic() + REQUEST_SECONDS, b""
    while b"\r\n\r\n" not in received:
        _wait(connection, selectors.EVENT_READ, deadline)
        with suppress(BlockingIOError):
            block = connection.recv(_REQUEST_BYTES)
            received += block
            if not block or len(received) > _REQUEST_BYTES:
                raise ConnectionError("no request")
    return received


def _head(status: int, length: int = 0, more: str = "") -> bytes:
    lines = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {length}\r\n{more}"
    return f"{lines}Connection: close\r\n\r\n".encode()


def _send(connection: socket.socket, content: bytes) -> None:
    deadline = time.monotonic() + REQUEST_SECONDS
    left = memoryview(content)
    while left:
        try:
            left = left[connection.send(left) :]
        except BlockingIOError:
            _wait(connection, selectors.EVENT_WRITE, deadline)


def _give_from(connection: socket.socket, file: OpenedFile, start: int) -> None:
    """Send a file from an offset on, also while it arrives. Raises TimeoutError for a reader that is too slow."""
    at, blocked = start, 0.0
    while at < file.size:
        arrived = file.wait_beyond(at, ARRIVAL_SECONDS)
        if arrived <= at:
            return
        while at < arrived:
            try:
                sent = os.sendfile(connection.fileno(), file.descriptor, at, min(_PIECE_BYTES, arrived - at))
            except BlockingIOError:
                since = time.monotonic()
                most = SLOW_SECONDS + (at - start) / SLOW_BYTES_PER_SECOND - blocked
                _wait(connection, selectors.EVENT_WRITE, since + most)
                blocked += time.monotonic() - since
                continue
            if not sent:
                return  # The file was cut short.
            at += sent


def _wait(connection: socket.socket, event: int, deadline: float) -> None:
    """Return when the connection is ready. Raises TimeoutError at the deadline."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, event)
        left = deadline - time.monotonic()
        if left <= 0 or not selector.select(left):
            raise TimeoutError("a connection of another pod is too slow")
