"""Lets the pods of a job start their ranks at the same moment.

The pod of rank 0 listens. Each other pod connects, sends one line of JSON with its job, attempt and index, and waits.
When all pods have connected, the pod of rank 0 answers `go`. Before, it sends a line every few seconds that names the
pods that are still missing. So no rank's own time limit runs while another pod still pulls its image or restores.
"""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from dtj_trainer.launch.peers import (
    CONNECT_SECONDS,
    FIRST_PAUSE_SECONDS,
    LOG_EVERY_SECONDS,
    LONGEST_PAUSE_SECONDS,
    PeersUnreachable,
)
from dtj_trainer.launch.settings import Settings

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
OWN_POLL_SECONDS = 0.05
HELLO_SECONDS = 10.0
"""A connection without a valid line after this many seconds is closed."""
SILENCE_SECONDS = 4 * LOG_EVERY_SECONDS
"""A pod connects anew when the pod of rank 0 has sent nothing for this many seconds."""
_LINE_BYTES = 1024
_BACKLOG = 4096
_MOST_NAMES = 20
_SPARE_FILES = 128
_GO = b"go\n"
_NO_LINE = "it accepted the connection and sent no line"


class PortTaken(Exception):
    """Another process listens on the port of the start barrier."""


class StartBarrier:
    """The start barrier of a job with several pods, on the side of one pod."""

    def __init__(self, settings: Settings, given_up: Callable[[], bool]) -> None:
        """`given_up`: returns True when this pod does not wait any longer."""
        assert settings.start_barrier is not None
        self._settings = settings
        self._host, self._port = settings.start_barrier
        self._pods = settings.world_size // max(settings.pod.slots, 1)
        self._given_up = given_up
        self._ready = threading.Event()
        self._served: Future[None] | None = None

    def open(self) -> None:
        """Let the other pods connect in the background, if this is the pod of rank 0. It may not be ready yet."""
        if self._settings.pod.index == 0:
            self._served = ThreadPoolExecutor(1, "start-barrier").submit(self._serve)

    def wait(self) -> None:
        """Return when all pods are ready, this one included, or when `given_up` returns True. Call `open` before.

        Raises PeersUnreachable after the peer timeout, and PortTaken.
        """
        started = time.monotonic()
        self._ready.set()
        if self._served is not None:
            self._served.result()
        else:
            _join(self._settings, self._host, self._port, self._pods, self._given_up)
        if not self._given_up():
            log.info("all %d pods are ready after %.1f s", self._pods, time.monotonic() - started)

    def _serve(self) -> None:
        with (
            _listen(self._host, self._port, self._settings.peer_timeout, self._given_up) as listener,
            Host(self._settings, self._pods, self._ready) as barrier,
        ):
            barrier.wait(listener, self._given_up)


def _hello(settings: Settings, index: int) -> bytes:
    return json.dumps({"job": settings.uid, "attempt": settings.attempt, "index": index}).encode() + b"\n"


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    since: float
    received: bytes = b""
    index: int | None = None
    """The index of the pod, after a valid line."""


class Host:
    """The side of the pod with rank 0. Its work is linear in the number of pods."""

    def __init__(self, settings: Settings, pods: int, ready: threading.Event) -> None:
        """`ready`: set when the pod of rank 0 is ready itself."""
        self._ready = ready
        self._role, self._timeout = settings.pod.role, settings.peer_timeout
        self._hellos = {_hello(settings, index): index for index in range(1, pods)}
        self._count = pods
        self._arrived: dict[int, _Connection] = {}
        """The pods that wait, by index."""
        self._strangers: dict[_Connection, None] = {}
        """Connections that have not sent their line yet, the oldest first."""
        self._selector = selectors.DefaultSelector()
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def __enter__(self) -> Host:
        soft, hard = self._limits
        needed = self._count + _SPARE_FILES
        if soft != resource.RLIM_INFINITY and soft < needed:
            most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (*self._strangers, *self._arrived.values()):
            connection.socket.close()
        self._selector.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def wait(self, listener: socket.socket, given_up: Callable[[], bool]) -> None:
        """Wait until all pods are ready, then let the others start.

        Raises PeersUnreachable when others are missing for the peer timeout after this pod is ready.
        """
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        ready_at = None
        told_at = swept_at = time.monotonic()
        while not (self._ready.is_set() and len(self._arrived) == len(self._hellos)):
            # The selector can't wait for `_ready`, so poll for it.
            self._serve(listener, POLL_SECONDS if self._ready.is_set() else OWN_POLL_SECONDS)
            now = time.monotonic()
            if given_up():
                return
            if ready_at is None and self._ready.is_set():
                ready_at = now
            if (
                ready_at is not None
                and now - ready_at >= self._timeout
                and len(self._arrived) < len(self._hellos)
            ):
                raise PeersUnreachable(f"after {self._timeout:g} s {self._missing()}")
            if now - swept_at >= 1:
                swept_at = now
                for silent in [each for each in self._strangers if now - each.since >= HELLO_SECONDS]:
                    self._drop(silent)
            if now - told_at >= LOG_EVERY_SECONDS:
                told_at = now
                log.info("%s", self._missing())
                self._tell(f"{self._missing()}\n".encode())
        self._tell(_GO)

    def _serve(self, listener: socket.socket, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._accept(listener)
            else:
                self._read(key.data)

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of file descriptors, or a peer that has gone. The peer tries again.
            log.warning("a connection to the start barrier can't be accepted: %s", error)
            time.sleep(FIRST_PAUSE_SECONDS)
            return
        accepted.setblocking(False)
        connection = _Connection(accepted, time.monotonic())
        if len(self._strangers) + len(self._arrived) >= self._count + _SPARE_FILES // 2:
            # More than all pods: somebody else takes the descriptors that the pods need.
            self._drop(next(iter(self._strangers)))
        self._strangers[connection] = None
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> None:
        if connection.socket.fileno() == -1:
            return  # Dropped after the selector had returned it.
        try:
            block = connection.socket.recv(_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            block = b""
        if not block:
            self._drop(connection)
        elif connection.index is None:
            connection.received += block
            if b"\n" in block:
                self._admit(connection)
            elif len(connection.received) >= _LINE_BYTES:
                self._drop(connection)

    def _admit(self, connection: _Connection) -> None:
        index = self._hellos.get(connection.received)
        if index is None:
            log.warning("the start barrier refused a connection of another job or attempt")
            with contextlib.suppress(OSError):
                connection.socket.send(b"refused: this is the start barrier of another job or attempt\n")
            self._drop(connection)
            return
        if earlier := self._arrived.get(index):
            self._drop(earlier)
        connection.index = index
        del self._strangers[connection]
        self._arrived[index] = connection

    def _drop(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._strangers.pop(connection, None)
        if connection.index is not None:
            del self._arrived[connection.index]

    def _tell(self, line: bytes) -> None:
        for connection in self._arrived.values():
            with contextlib.suppress(OSError):
                # A few bytes fit into the buffer of a socket. A pod that has gone is noticed by its own end.
                connection.socket.send(line)

    def _missing(self) -> str:
        own = [] if self._ready.is_set() else [0]
        missing = [*own, *(index for index in self._hellos.values() if index not in self._arrived)]
        return f"{len(missing)} of {self._count} pods are not ready: {_names(self._role, missing)}"


def _names(role: str, indices: Iterable[int]) -> str:
    names = [f"{role}-{index}" for index in indices]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _listen(host: str, port: int, timeout: float, given_up: Callable[[], bool]) -> socket.socket:
    """Listen on all addresses, or on loopback where `host` is loopback. Raises PortTaken after the timeout."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            if host in ("localhost", "127.0.0.1"):
                return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
            if socket.has_dualstack_ipv6():
                with contextlib.suppress(OSError):  # A machine with the code and without addresses of IPv6.
                    return socket.create_server(
                        ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
                    )
            return socket.create_server(("", port), backlog=_BACKLOG)
        except OSError as error:
            if time.monotonic() >= deadline or given_up():
                raise PortTaken(
                    f"port {port} of the start barrier can't be opened: {error.strerror}"
                ) from error
            time.sleep(POLL_SECONDS)


def _join(settings: Settings, host: str, port: int, pods: int, given_up: Callable[[], bool]) -> None:
    """The side of the other pods: connect, and return after `go`.

    Raises PeersUnreachable when the pod of rank 0 has not sent a line for the peer timeout. While that pod sends
    lines, its own time limit counts.
    """
    hello = _hello(settings, settings.pod.index)
    answered_at = logged_at = time.monotonic()
    pause = FIRST_PAUSE_SECONDS
    # Thousands of pods would load the cluster's DNS.
    longest_pause = min(LONGEST_PAUSE_SECONDS, max(0.25, pods / 1000))
    while not given_up():
        try:
            with socket.create_connection((host, port), CONNECT_SECONDS) as connection:
                connection.sendall(hello)
                said = _wait_for_go(connection, given_up)
                if said is None:
                    return
        except socket.gaierror:
            said = "its name does not resolve"
        except OSError as error:
            said = error.strerror or str(error)
        else:
            # A proxy accepts and closes, a stopped process accepts and is silent. Only a line is an answer.
            if said != _NO_LINE and not said.startswith("refused"):
                answered_at, pause = time.monotonic(), FIRST_PAUSE_SECONDS
        now = time.monotonic()
        if now - answered_at >= settings.peer_timeout:
            raise PeersUnreachable(
                f"{settings.pod.role}-0 did not answer at {host}:{port} for {settings.peer_timeout:g} s: {said}"
            )
        if now - logged_at >= LOG_EVERY_SECONDS:
            logged_at = now
            log.info("waiting for %s-0 at %s:%d: %s", settings.pod.role, host, port, said)
        time.sleep(pause)
        pause = min(pause * 1.5, longest_pause)


def _wait_for_go(connection: socket.socket, given_up: Callable[[], bool]) -> str | None:
    """Return None after `go`, else the other side's last line before it closed the connection or fell silent.

    Raises OSError for a side that is no start barrier.
    """
    connection.settimeout(POLL_SECONDS)
    heard_at = time.monotonic()
    received = b""
    said = _NO_LINE
    while not given_up() and time.monotonic() - heard_at < SILENCE_SECONDS:
        try:
            block = connection.recv(4096)
        except TimeoutError:
            continue
        if not block:
            return said
        heard_at = time.monotonic()
        *lines, received = (received + block).split(b"\n")
        if len(received) > _LINE_BYTES:
            raise OSError("it sends no lines of a start barrier")
        for line in lines:
            if line + b"\n" == _GO:
                return None
            said = line.decode(errors="replace")
            log.info("%s", said)
    return said
