"""Gives files of the restored checkpoint to the job's other pods, and tells them from which pods to get one.

    GET  /checkpoints/<sha256>               the file, or its rest with `Range: bytes=<start>-`
    POST /checkpoints/<sha256>/askers/<pod>  JSON: {"pods": [<number of a pod>, …]}

Anybody in the cluster may connect where no NetworkPolicy is enforced; see `request_server`. A slow reader is cut off,
and transfers are limited; a pod that gets no connection reads from the bucket.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.offered_files import OfferedFiles
from dtj_trainer.artifacts.peer_askers import Askers
from dtj_trainer.request_server import RequestServer, head, send, wait

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from dtj_trainer.artifacts.offered_files import OpenedFile
    from dtj_trainer.artifacts.peer_hosts import PeerHosts

TRANSFERS = 16
TRANSFERS_OF_A_FILE = 4
"""Two for the pods below this one in the tree, and two for those whose own source has failed."""
ARRIVAL_SECONDS = 20.0
"""A transfer ends when the file that this pod fetches itself has no more bytes for so long."""
SLOW_SECONDS, SLOW_BYTES_PER_SECOND = 20.0, 1e6
"""A reader may block a transfer for so many seconds, and for the time of its bytes at this speed."""
_PIECE_BYTES = 2**20
_REQUEST = re.compile(
    rb"(?:GET /checkpoints/(?P<file>[0-9a-f]{64})|"
    rb"POST /checkpoints/(?P<of>[0-9a-f]{64})/askers/(?P<asker>[0-9]{1,7})) HTTP/1\.[01]\r\n"
)
_RANGE = re.compile(rb"\r\nrange: *bytes=([0-9]{1,18})-\r\n", re.IGNORECASE)


class PeerServer:
    """The server of one pod, in threads of its own."""

    def __init__(self, hosts: PeerHosts) -> None:
        """Listen. Raises OSError."""
        self.files = OfferedFiles()
        self._askers = Askers()
        self._pods = hosts.pods.count
        self._lock = threading.Lock()
        self._transfers: Counter[str] = Counter()
        self._server = RequestServer(hosts.listen, hosts.port, self._answer, "peers")

    def start(self) -> None:
        """Serve in the background."""
        self._server.start()

    def close(self) -> None:
        """Accept no more connections."""
        self._server.close()

    def _answer(self, connection: socket.socket, request: bytes, let_next_in: Callable[[], None]) -> None:
        match = _REQUEST.match(request)
        if match and match["asker"] and int(match["asker"]) < self._pods:
            self._tell_sources(connection, match["of"].decode(), int(match["asker"]))
        elif match and match["file"]:
            let_next_in()  # Transfers have limits of their own.
            self._give(connection, match["file"].decode(), _RANGE.search(request))
        else:
            send(connection, head(400))

    def _tell_sources(self, connection: socket.socket, sha256: str, pod: int) -> None:
        body = json.dumps({"pods": self._askers.ask(sha256, pod)}).encode()
        send(connection, head(200, len(body)) + body)

    def _give(self, connection: socket.socket, sha256: str, rest: re.Match[bytes] | None) -> None:
        with self._transfer(sha256) as free:
            if not free:
                send(connection, head(429))
                return
            with self.files.opened(sha256) as file:
                start = int(rest[1]) if rest else 0
                if file is None:
                    send(connection, head(404))
                elif start >= file.size:
                    send(connection, head(416))
                else:
                    span = f"Content-Range: bytes {start}-{file.size - 1}/{file.size}\r\n"
                    status = (206, span) if rest else (200, "")
                    send(connection, head(status[0], file.size - start, status[1]))
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
                wait(connection, selectors.EVENT_WRITE, since + most)
                blocked += time.monotonic() - since
                continue
            if not sent:
                return  # The file was cut short.
            at += sent
