"""Files of the restored checkpoint, passed on among the job's pods: a server, a client, and who asks whom."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import selectors
import stat
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.arriving_file import arrived_of, part_of
from dtj_trainer.artifacts.peer_hosts import PeerHosts
from dtj_trainer.request_server import RequestServer, head, send, wait

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dtj_trainer.artifacts.arriving_file import ArrivingFile
    from dtj_trainer.artifacts.download import ByteCount
    from dtj_trainer.artifacts.manifest import Manifest, StoredFile


# A tracker decides which pods fetch a file from the bucket: one pod, and each pod passes the file on to two others.
#
# The SHA-256 of a file chooses one of the pods as the file's tracker. All pods ask the tracker where to get the file.
# It sends the first pod that asks to the bucket. The others form a binary tree in the order in which they ask: no pod
# waits for one that starts later.

MOST_FILES = 4096
"""The most files that a tracker remembers. A question about another file makes it forget the oldest."""
TRACKERS = 3
"""The number of trackers of a file. A pod asks the next tracker if a tracker does not answer."""


def trackers_of(sha256: str, pods: int) -> list[int]:
    """Return the numbers of the pods that are trackers of a file, in the order in which a pod asks them."""
    first = int(sha256[:8], 16) % pods
    return [(first + each) % pods for each in range(min(TRACKERS, pods))]


class Askers:
    """The pods that have asked for each file. Thread-safe; a question costs the same for any number of pods."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[list[int], dict[int, int]]] = {}
        """By SHA-256 of a file: the pods in the order in which they asked, and the place of each pod in that
        order."""
        self._lock = threading.Lock()

    def ask(self, sha256: str, pod: int) -> list[int]:
        """Return the pods from which `pod` may get the file, the best one first; empty: only from the bucket.

        A pod that asks again keeps its place, so that no two pods wait for each other.
        """
        with self._lock:
            if sha256 not in self._files and len(self._files) >= MOST_FILES:
                del self._files[next(iter(self._files))]
            order, places = self._files.setdefault(sha256, ([], {}))
            place = places.setdefault(pod, len(order))
            if place == len(order):
                order.append(pod)
            return [order[above] for above in _above(place)]


def _above(place: int) -> list[int]:
    found = []
    while place:
        place = (place - 1) // 2
        found.append(place)
    return found


# OfferedFiles has the files of the restored checkpoint that other pods may read, also while the files arrive.
#
# A request names a file by its SHA-256, which only readers of the manifest in the bucket know. No path comes from
# outside.

LEAST_BYTES = 8 * 2**20
"""Every pod reads smaller files from the bucket: a request to a tracker would take longer than the transfer."""
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class OpenedFile:
    """A file of `size` bytes that is open for reading. `counter`: the descriptor whose file counts arrived bytes."""

    size: int
    descriptor: int
    counter: int | None

    def wait_beyond(self, at: int, seconds: float) -> int:
        """Return how many bytes have arrived, as soon as they are more than `at`.

        Returns `at` or less if no byte came for `seconds`, or if the fetch has failed.
        """
        deadline = time.monotonic() + seconds
        while True:
            arrived = self._arrived()
            if arrived is None or arrived > at or time.monotonic() > deadline:
                return arrived or 0
            time.sleep(_POLL_SECONDS)

    def _arrived(self) -> int | None:
        if self.counter is None:
            return self.size
        status = os.fstat(self.counter)
        return status.st_size if status.st_nlink or status.st_size == self.size else None


class OfferedFiles:
    """The large files of the checkpoint that this pod restores. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, tuple[int, list[Path]]] = {}
        self._of_round: dict[str, tuple[int, list[Path]]] = {}
        self._manifest = "", b""
        """The hash and the content of the manifest that the last round began with."""

    def offer(self, manifest: Manifest, *folders: Path) -> None:
        """Offer the large files of a checkpoint, in place of those of an earlier checkpoint.

        folders: a file is offered as soon as one of these folders has the file.
        """
        files = {
            file.sha256: (file.size, [folder / file.path for folder in folders])
            for file in manifest.files
            if file.size >= LEAST_BYTES
        }
        with self._lock:
            self._files = files

    def offer_round(self, sha256: str, content: bytes, files: Mapping[str, tuple[int, list[Path]]]) -> None:
        """Offer the snapshot with which a round begins, in place of the snapshot of an earlier round.

        content: the manifest; sha256: its hash. files: sizes and possible places by hash, of small files, too.
        """
        with self._lock:
            self._manifest, self._of_round = (sha256, content), dict(files)

    @contextmanager
    def opened(self, sha256: str) -> Iterator[OpenedFile | None]:
        """Open a file; None if this pod does not have it, and does not fetch it either."""
        with self._lock:
            size, paths = self._files.get(sha256) or self._of_round.get(sha256, (0, []))
            name, content = self._manifest
        descriptors: list[int] = []
        try:
            if sha256 == name:
                yield _in_memory(content, descriptors)
            else:
                yield _opened(size, paths, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _opened(size: int, paths: list[Path], descriptors: list[int]) -> OpenedFile | None:
    for path in paths:
        # Try the complete file, then the one that arrives, then the complete one again: the download may have ended
        # meanwhile.
        for source, count in ((path, None), (part_of(path), arrived_of(path)), (path, None)):
            with suppress(OSError):
                counter = _open(count, descriptors) if count else None
                descriptor = _open(source, descriptors)
                if counter is None and os.fstat(descriptor).st_size == size:
                    return OpenedFile(size, descriptor, None)
                # The size file still exists, so that both files are of one download.
                if counter is not None and os.fstat(counter).st_nlink:
                    return OpenedFile(size, descriptor, counter)
    return None


def _in_memory(content: bytes, descriptors: list[int]) -> OpenedFile:
    descriptors.append(descriptor := os.memfd_create("manifest"))
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return OpenedFile(len(content), descriptor, None)


def _open(path: Path, descriptors: list[int]) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    descriptors.append(descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(f"{path} is not a regular file")
    return descriptor


log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long a restore waits in all for pods that do not answer: pods of a job do not start at the same moment, and
none can train before all have started."""
CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 10.0
"""How long a tracker may take to answer: a tracker answers thousands of pods one after the other."""
STILL_SECONDS, STILL_SECONDS_FOR_EACH_ABOVE = 5.0, 2.0
"""A download from a pod that sends nothing for this many seconds is given up. A pod further down in the tree waits
longer, so that the pod above has time to get the file elsewhere."""
SLOWEST_PEER_BYTES_PER_SECOND = 1e5
"""A download that is slower than this once STILL_SECONDS have passed is given up, too."""
_RETRY_SECONDS = 0.25
_BLOCK_BYTES = 2**20
_ANSWER_BYTES = 4096
BUSY = f"HTTP status {http.client.TOO_MANY_REQUESTS}"
"""Stands in the fault of a pod that refuses a request because of too many other transfers."""


class CheckpointPeers:
    """A client of the other pods, for one restore. Not thread-safe."""

    def __init__(self, hosts: PeerHosts, patience: float = PATIENCE_SECONDS) -> None:
        """`patience`: seconds to wait in all for pods that have not started yet."""
        self._hosts = hosts
        self._patience = patience
        self._silent: set[int] = set()
        self.bytes_received = 0
        """Bytes that came from other pods."""

    def takes(self, file: StoredFile) -> bool:
        """Return whether to ask other pods for the file."""
        return file.size >= LEAST_BYTES

    def in_own_order(self, files: list[StoredFile]) -> list[StoredFile]:
        """Return the files in another order for each pod, so that pods fetch different files from the bucket."""
        start = len(files) * self._hosts.own // self._hosts.pods.count
        return files[start:] + files[:start]

    def bring(self, file: StoredFile, arriving: ArrivingFile, received: ByteCount) -> None:
        """Receive as much of a file as other pods send. Raises OSError for errors of the disk."""
        sources = self._sources(file)
        for number, source in enumerate(sources):
            still = STILL_SECONDS + STILL_SECONDS_FOR_EACH_ABOVE * (len(sources) - number)
            before = arriving.at
            fault = self._get(source, file, arriving, received, still)
            self.bytes_received += arriving.at - before
            if fault is None:
                return
            log.debug("%s does not give %s: %s", self._hosts.host_of(source), file.path, fault)

    def _sources(self, file: StoredFile) -> list[int]:
        """Return the pods that may send the file, the best one first; empty: this pod is the first that asks."""
        while True:
            started, answered = time.monotonic(), False
            for tracker in trackers_of(file.sha256, self._hosts.pods.count):
                try:
                    if sources := self._ask(tracker, file.sha256):
                        return sources
                    answered = True  # The next tracker may know a pod that asked before this tracker ran.
                except (OSError, http.client.HTTPException, ValueError) as error:
                    log.debug("%s does not answer: %s", self._hosts.host_of(tracker), error)
            if answered or self._patience <= 0:
                return []
            time.sleep(_RETRY_SECONDS)
            self._patience -= time.monotonic() - started

    def _ask(self, tracker: int, sha256: str) -> list[int]:
        with closing(self._connected(tracker)) as connection:
            connection.sock.settimeout(ANSWER_SECONDS)
            connection.request("POST", f"/checkpoints/{sha256}/askers/{self._hosts.own}")
            try:
                answer = connection.getresponse()
            except TimeoutError:
                self._silent.add(tracker)
                raise
            if answer.status != http.client.OK:
                raise OSError(f"HTTP status {answer.status}")
            try:
                pods = [int(pod) for pod in json.loads(answer.read(_ANSWER_BYTES))["pods"]]
            except (KeyError, TypeError) as error:
                raise ValueError(f"the answer is no list of pods: {error!r}") from error
            return [pod for pod in pods if 0 <= pod < self._hosts.pods.count and pod != self._hosts.own]

    def _get(
        self, source: int, file: StoredFile, arriving: ArrivingFile, received: ByteCount, still: float
    ) -> str | None:
        """Receive the rest of a file from one pod; return the fault, or None."""
        try:
            with closing(self._connected(source)) as connection:
                connection.sock.settimeout(still)
                rest = {"Range": f"bytes={arriving.at}-"}
                connection.request("GET", f"/checkpoints/{file.sha256}", headers=rest)
                answer = connection.getresponse()
                if answer.status != http.client.PARTIAL_CONTENT or answer.length != file.size - arriving.at:
                    return f"HTTP status {answer.status}, {answer.length} bytes"
                return _received(answer, file, arriving, received, still)
        except _DiskError as error:
            raise error.cause from error
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"

    def _connected(self, pod: int) -> http.client.HTTPConnection:
        """Connect to a pod. Raises OSError."""
        if pod in self._silent:
            raise OSError("the pod did not answer an earlier request")
        connection = http.client.HTTPConnection(
            self._hosts.host_of(pod), self._hosts.port, timeout=CONNECT_SECONDS
        )
        try:
            connection.connect()
        except TimeoutError:  # The pod's node is probably gone: do not wait for this pod again.
            self._silent.add(pod)
            raise
        return connection


def _received(
    answer: http.client.HTTPResponse,
    file: StoredFile,
    arriving: ArrivingFile,
    received: ByteCount,
    still: float,
) -> str | None:
    start, began = arriving.at, time.monotonic()
    while arriving.at < file.size:
        block = answer.read1(_BLOCK_BYTES)
        if not block:
            return f"the pod stopped at {arriving.at} of {file.size} bytes"
        try:
            arriving.append(block)
        except OSError as error:
            raise _DiskError(error) from error
        received.add(len(block))
        if time.monotonic() - began > still + (arriving.at - start) / SLOWEST_PEER_BYTES_PER_SECOND:
            return f"the pod is slow: {arriving.at - start} bytes in {time.monotonic() - began:.0f} s"
    return None


class _DiskError(Exception):
    """An error of this pod's disk, in contrast to one of the connection."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


# PeerServer sends files of the restored checkpoint to the job's other pods, and tells a pod from which pods to get a
# file.
#
#     GET  /checkpoints/<sha256>               the file, or its rest with `Range: bytes=<start>-`
#     POST /checkpoints/<sha256>/askers/<pod>  JSON: {"pods": [<number of a pod>, …]}
#     POST /rounds/<sha256>/lacks              JSON: {"files": <number of files of this pod that the manifest lacks>}
#
# Anybody in the cluster may connect where no NetworkPolicy is enforced; see `request_server`. A slow reader is cut
# off, and transfers are limited; a pod that gets no connection reads from the bucket.

TRANSFERS = 16
TRANSFERS_OF_A_FILE = 4
"""The most transfers of one file: two for the pods below this one in the tree, and two for pods whose own source has
failed."""
ARRIVAL_SECONDS = 20.0
"""A transfer ends when this pod, which still fetches the file itself, has received no more bytes for this many
seconds."""
SLOW_SECONDS, SLOW_BYTES_PER_SECOND = 20.0, 1e6
"""A transfer ends when its reader blocks it for more than SLOW_SECONDS plus the time that the bytes take at this
speed."""
_PIECE_BYTES = 2**20
_REQUEST = re.compile(
    rb"(?:GET /checkpoints/(?P<file>[0-9a-f]{64})|"
    rb"POST /checkpoints/(?P<of>[0-9a-f]{64})/askers/(?P<asker>[0-9]{1,7})|"
    rb"POST /rounds/(?P<round>[0-9a-f]{64})/lacks) HTTP/1\.[01]\r\n"
)
_RANGE = re.compile(rb"\r\nrange: *bytes=([0-9]{1,18})-\r\n", re.IGNORECASE)


class PeerServer:
    """The server of one pod, in threads of its own."""

    def __init__(self, hosts: PeerHosts) -> None:
        """Listen. Raises OSError."""
        self.files = OfferedFiles()
        self.lacks: Callable[[str], int | None] = lambda _: None
        """Counts the files of this pod that the manifest with this hash lacks; None: nobody offers that manifest."""
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
        elif match and match["round"]:
            self._tell_lacks(connection, match["round"].decode())
        elif match and match["file"]:
            # Let the server accept the next request meanwhile: transfers have limits of their own.
            let_next_in()
            self._give(connection, match["file"].decode(), _RANGE.search(request))
        else:
            send(connection, head(400))

    def _tell_sources(self, connection: socket.socket, sha256: str, pod: int) -> None:
        body = json.dumps({"pods": self._askers.ask(sha256, pod)}).encode()
        send(connection, head(200, len(body)) + body)

    def _tell_lacks(self, connection: socket.socket, sha256: str) -> None:
        count = self.lacks(sha256)
        body = json.dumps({"files": count}).encode()
        send(connection, head(404) if count is None else head(200, len(body)) + body)

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
            # A read of an absent key does not add the key to a Counter.
            free = self._transfers.total() < TRANSFERS and self._transfers[sha256] < TRANSFERS_OF_A_FILE
            if free:
                self._transfers[sha256] += 1
        try:
            yield free
        finally:
            if free:
                with self._lock:
                    self._transfers[sha256] -= 1
                    self._transfers += Counter()  # Adding an empty Counter drops the keys whose count is 0.


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
