"""The connections of a job's pods to one of them: a server with one selector, however many pods there are.

A connection begins with a hello, a line of JSON with job, attempt and index. Lines of the pod follow.
"""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass

log = logging.getLogger(__name__)

LINE_BYTES = 8192
"""A connection with a longer line, the line feed included, is closed."""
HELLO_SECONDS = 10.0
"""Seconds after which a connection that has sent no hello is closed."""
SILENCE_SECONDS = 30
"""A connection breaks after this long without an answer of the other machine."""
_KEEPALIVE_SECONDS, _KEEPALIVE_EVERY = 10, 5
_SPARE_FILES = 128
_STRANGERS = 64
"""The most connections without a hello. Of more, the oldest are closed: the pods need the file descriptors."""
_PAUSE_SECONDS = 0.05
_AT_ONCE = 64
"""The number of lines that `poll` sends before it reads: with more lines, the sockets of the first ones would have
left the processor's cache when their answers are read."""
_REFUSED = b"refused: this is the start barrier of another job or attempt\n"


@dataclass(frozen=True)
class Sender:
    """The pod at the other end of a connection. `birth`: the attempt in which it was made."""

    index: int
    birth: int


@dataclass(frozen=True)
class Came:
    """A pod has said its hello."""

    number: int
    pod: Sender


@dataclass(frozen=True)
class Said:
    """A pod has sent a line, without the line feed."""

    number: int
    line: bytes


@dataclass(frozen=True)
class Went:
    """A connection has ended, or another one of its pod has taken its place."""

    number: int


ConnectionEvent = Came | Said | Went


def hello_of(job: str, attempt: int, index: int) -> bytes:
    """Return the first line of each connection of a pod, which the start barrier compares byte for byte."""
    return json.dumps({"job": job, "attempt": attempt, "index": index}).encode() + b"\n"


def read_hello(line: bytes, job: str, attempt: int, pods: int) -> Sender | None:
    """Return the pod of this job that says so; None for anything else, or a pod of an earlier attempt."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.get("job") != job:
        return None
    index, birth = said.get("index"), said.get("attempt")
    # Compare types, because isinstance(True, int) is true.
    if type(index) is not int or type(birth) is not int or not 0 <= index < pods or birth < attempt:
        return None
    return Sender(index, birth)


def hold(connection: socket.socket) -> None:
    """Let a connection break when the other machine is silent."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_EVERY)
    probes = (SILENCE_SECONDS - _KEEPALIVE_SECONDS) // _KEEPALIVE_EVERY
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)


def break_off(connection: socket.socket) -> None:
    """End a connection without closing its socket: the thread that reads from the socket closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@dataclass(eq=False)
class _Connection:
    number: int
    socket: socket.socket
    since: float
    received: bytes = b""
    pod: Sender | None = None

    @property
    def closed(self) -> bool:
        return self.socket.fileno() == -1


class PodConnections:
    """The server. Each pod has one connection: the latest one of the pod with the latest birth. Not thread-safe."""

    def __init__(self, listener: socket.socket, hello: Callable[[bytes], Sender | None], pods: int) -> None:
        """Own the listener. `hello`: returns the pod that sends this first line, or None. `pods`: the most pods that
        may be connected.
        """
        self._listener, self._hello, self._count = listener, hello, pods
        self._strangers: dict[int, _Connection] = {}
        """Connections without a hello, the oldest first."""
        self._connections: dict[int, _Connection] = {}
        self._of_pods: dict[int, _Connection] = {}
        """The connections by the index of their pod."""
        self._outgoing: deque[tuple[_Connection, bytes]] = deque()
        self._numbers = 0
        self._selector = selectors.DefaultSelector()
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def __enter__(self) -> PodConnections:
        """Allow this process a descriptor for each pod."""
        soft, hard = self._limits
        needed = self._count + _SPARE_FILES
        if soft != resource.RLIM_INFINITY and soft < needed:
            most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send what is left to send, and close all connections and the listener."""
        self._send_next(len(self._outgoing))
        for connection in (*self._strangers.values(), *self._connections.values()):
            connection.socket.close()
        self._listener.close()
        self._selector.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def __contains__(self, number: object) -> bool:
        """Return whether a connection of a pod is open."""
        return number in self._connections

    @property
    def pods(self) -> Set[int]:
        """The indexes of the pods that are connected."""
        return self._of_pods.keys()

    @property
    def senders(self) -> Mapping[int, Sender]:
        """The pods that are connected, by the number of their connection."""
        return {number: each.pod for number, each in self._connections.items() if each.pod}

    @property
    def port(self) -> int:
        """The port of the listener."""
        port: int = self._listener.getsockname()[1]
        return port

    def poll(self, timeout: float) -> Iterator[ConnectionEvent]:
        """Wait at most `timeout` seconds; yield what happened. The caller may drop connections meanwhile."""
        self._send_next(_AT_ONCE)
        for key, _ in self._selector.select(0 if self._outgoing else timeout):
            if key.data is None:
                self._accept()
            elif not key.data.closed:
                yield from self._read(key.data)
        now = time.monotonic()
        for stranger in list(self._strangers.values()):
            if now - stranger.since < HELLO_SECONDS:
                break
            self._close(stranger)

    def send(self, line: bytes, number: int) -> None:
        """Send a line on one connection. Call it before a `send_all` that is to reach the connection."""
        self._send(self._connections[number], line)

    def send_all(self, line: bytes) -> None:
        """Send a line to all pods that are connected now, during the next polls."""
        self._outgoing.extend((connection, line) for connection in self._connections.values())

    def _send_next(self, most: int) -> None:
        for _ in range(min(most, len(self._outgoing))):
            self._send(*self._outgoing.popleft())

    def _send(self, connection: _Connection, line: bytes) -> None:
        try:
            sent = connection.socket.send(line)
        except OSError:
            sent = 0
        if sent < len(line):
            # The buffer of a socket holds a few lines: a pod that has not read them has stopped.
            break_off(connection.socket)

    def drop(self, number: int) -> None:
        """Close a connection. No event of it follows."""
        self._close(self._connections[number])

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Go on: this process may have no free file descriptor, or the peer may have gone. The peer tries again.
            log.warning("a connection to the start barrier can't be accepted: %s", error)
            time.sleep(_PAUSE_SECONDS)
            return
        accepted.setblocking(False)
        hold(accepted)
        if len(self._strangers) >= _STRANGERS:
            self._close(next(iter(self._strangers.values())))
        self._numbers += 1
        connection = _Connection(self._numbers, accepted, time.monotonic())
        self._strangers[connection.number] = connection
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> Iterator[ConnectionEvent]:
        try:
            block = connection.socket.recv(LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            block = b""
        *lines, connection.received = (connection.received + block).split(b"\n")
        for line in lines:
            if connection.closed:
                return  # An earlier line of the block led to the end of the connection.
            if connection.pod:
                yield Said(connection.number, line)
            else:
                yield from self._admit(connection, line)
        if (not block or len(connection.received) >= LINE_BYTES) and not connection.closed:
            yield from self._end(connection)

    def _admit(self, connection: _Connection, line: bytes) -> Iterator[ConnectionEvent]:
        pod = self._hello(line)
        known = self._of_pods.get(pod.index) if pod else None
        if pod is None or (known and known.pod and known.pod.birth > pod.birth):
            log.warning("the start barrier refused a connection of another job or attempt")
            with contextlib.suppress(OSError):
                connection.socket.send(_REFUSED)
            self._close(connection)
            return
        if known:
            yield from self._end(known)
        connection.pod = pod
        del self._strangers[connection.number]
        self._connections[connection.number] = self._of_pods[pod.index] = connection
        yield Came(connection.number, pod)

    def _end(self, connection: _Connection) -> Iterator[ConnectionEvent]:
        self._close(connection)
        if connection.pod:
            yield Went(connection.number)

    def _close(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._strangers.pop(connection.number, None)
        if connection.pod:
            del self._connections[connection.number]
            if self._of_pods.get(connection.pod.index) is connection:
                del self._of_pods[connection.pod.index]
