"""Waits until every host or worker is ready, and lets all pods of a job start their ranks at the same moment."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum

from dtj_trainer.launch.pod_connections import PodConnections, Sender, hello_of
from dtj_trainer.launch.settings import Settings

log = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
LOG_EVERY_SECONDS = 15.0
_CHECKS_AT_A_TIME = 32


class HostAnswer(Enum):
    """The result of connecting to a host's ssh port, or to the socket of a worker on this machine, for messages."""

    READY = "answers"
    UNRESOLVED = "its name does not resolve"
    SILENT = "it does not answer"
    REFUSED = "the connection is refused"
    NO_SSH = "what answers is no ssh server"
    NO_SUPERVISOR = "its supervisor does not answer"


class PeersUnreachable(Exception):
    """Hosts did not answer within the timeout. The message names them."""


def ask(host: str, port: int) -> HostAnswer:
    """Resolve the name, connect, and read the first bytes of the banner."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return HostAnswer.UNRESOLVED
    found = HostAnswer.SILENT
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(CONNECT_SECONDS)
                connection.connect(address)
                banner = connection.recv(4)
        except ConnectionRefusedError:
            found = HostAnswer.REFUSED
        except OSError:
            found = HostAnswer.SILENT
        else:
            if banner == b"SSH-":
                return HostAnswer.READY
            found = HostAnswer.NO_SSH
    return found


def ask_all(hosts: list[str], port: int) -> dict[str, HostAnswer]:
    """Ask many hosts in parallel."""
    with ThreadPoolExecutor(_CHECKS_AT_A_TIME) as pool:
        return dict(zip(hosts, pool.map(lambda host: ask(host, port), hosts), strict=True))


def wait_for_peers(
    peers: list[str],
    ask_peers: Callable[[list[str]], dict[str, HostAnswer]],
    timeout: float,
    kind: str,
    fault: str,
) -> None:
    """Return when all peers answer. Raises PeersUnreachable after `timeout` seconds.

    `kind`: the noun for the peers, in the plural. `fault`: the predicate for peers that don't answer.
    """
    started = logged_at = time.monotonic()
    waiting = dict.fromkeys(peers, HostAnswer.SILENT)
    pause = FIRST_PAUSE_SECONDS
    while True:
        answers = ask_peers(list(waiting))
        waiting = {peer: answer for peer, answer in answers.items() if answer is not HostAnswer.READY}
        now = time.monotonic()
        if not waiting:
            log.info("all %d %s answer after %.1f s", len(peers), kind, now - started)
            return
        if now - started >= timeout:
            raise PeersUnreachable(
                f"after {timeout:g} s {len(waiting)} of {len(peers)} {kind} {fault}: {describe_waiting(waiting)}"
            )
        if now - logged_at >= LOG_EVERY_SECONDS:
            logged_at = now
            log.info("waiting for %d of %d %s: %s", len(waiting), len(peers), kind, describe_waiting(waiting))
        time.sleep(max(min(pause, started + timeout - now), 0.0))
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)


def describe_waiting(waiting: dict[str, HostAnswer]) -> str:
    """Group hosts by what is wrong with them."""
    reasons: dict[HostAnswer, list[str]] = {}
    for host, answer in waiting.items():
        reasons.setdefault(answer, []).append(host)
    return "; ".join(f"{', '.join(names)} ({answer.value})" for answer, names in reasons.items())


# Lets the pods of a job start their ranks at the same moment.
#
# The pod of rank 0 listens. Each other pod connects, sends one line of JSON with its job, attempt and index, and
# waits. When all pods have connected, the pod of rank 0 answers `go`. Before, it sends a line every few seconds that
# names the pods that are still missing. So no rank's own time limit runs while another pod still pulls its image or
# restores.

POLL_SECONDS = 0.5
OWN_POLL_SECONDS = 0.05
SILENCE_SECONDS = 4 * LOG_EVERY_SECONDS
"""A pod connects anew when the pod of rank 0 has sent nothing for this many seconds."""
_LINE_BYTES = 1024
_BACKLOG = 4096
_MOST_NAMES = 20
_GO = b"go\n"
_NO_LINE = "it accepted the connection and sent no line"


class PortTaken(Exception):
    """Another process listens on the port of the start barrier."""


class StartBarrier:
    """The start barrier of a job with several pods, on the side of one pod."""

    def __init__(self, settings: Settings, given_up: Callable[[], bool]) -> None:
        """`given_up`: returns True when this pod does not wait any longer. A job with one pod needs no
        `start_barrier` in its settings.
        """
        self._settings = settings
        self._host, self._port = settings.start_barrier or ("127.0.0.1", 0)
        self._pods = settings.world_size // max(settings.pod.slots, 1)
        self._given_up = given_up
        self._ready = threading.Event()
        self._served: Future[PodConnections | None] | None = None

    def open(self) -> None:
        """Let the other pods connect in the background, if this is the pod of rank 0. The pod need not be ready."""
        if self._settings.pod.index == 0:
            self._served = ThreadPoolExecutor(1, "start-barrier").submit(self._serve)

    def wait(self) -> PodConnections | socket.socket | None:
        """Return when all pods are ready, this one included, or when `given_up` returns True. Call `open` before.

        In a job with rounds, return what stays open: in the pod of rank 0 the connections of the other pods, in
        another pod the connection to that one. None: nothing. Raises PeersUnreachable after the peer timeout, and
        PortTaken.
        """
        started = time.monotonic()
        self._ready.set()
        held: PodConnections | socket.socket | None
        if self._served is not None:
            held = self._served.result()
        else:
            held = _join(self._settings, self._host, self._port, self._pods, self._given_up)
        if not self._given_up():
            log.info("all %d pods are ready after %.1f s", self._pods, time.monotonic() - started)
        if held and (self._given_up() or not self._settings.pod.rounds):
            held.close()
            return None
        return held

    def connect(self, port: int | None = None) -> socket.socket:
        """Return a new connection to the pod of rank 0, on which the hello is sent. `port`: another one than that of
        the settings, on this machine. Raises OSError.
        """
        place = (self._host, self._port) if port is None else ("127.0.0.1", port)
        return joined(self._settings, *place, self._settings.pod.index)

    def _serve(self) -> PodConnections | None:
        listener = _listen(self._host, self._port, self._settings.peer_timeout, self._given_up)
        barrier = BarrierHost(self._settings, self._pods, self._ready)
        with contextlib.ExitStack() as closing:
            connections = closing.enter_context(PodConnections(listener, barrier.hellos.get, self._pods))
            barrier.wait(connections, self._given_up)
            if self._settings.pod.rounds is None:
                return None
            closing.pop_all()
        return connections


class BarrierHost:
    """The side of the pod with rank 0. Its work is linear in the number of pods."""

    def __init__(self, settings: Settings, pods: int, ready: threading.Event) -> None:
        """`ready`: set when the pod of rank 0 is ready itself."""
        self._ready = ready
        self._role, self._timeout = settings.pod.role, settings.peer_timeout
        self._others = range(1, pods)
        # In a job with rounds, the agent of this pod connects to the barrier, too, as the agents of other pods do.
        says = range(pods) if settings.pod.rounds else self._others
        self.hellos = {
            hello_of(settings.uid, settings.attempt, index).rstrip(b"\n"): Sender(index, settings.attempt)
            for index in says
        }
        """The pods by the first lines of their connections."""

    def wait(self, connections: PodConnections, given_up: Callable[[], bool]) -> None:
        """Wait until all pods are ready, then let the others start.

        Raises PeersUnreachable when others are missing for the peer timeout after this pod is ready.
        """
        ready_at = None
        told_at = time.monotonic()
        while not (self._ready.is_set() and self._have_come(connections)):
            # The selector can't wait for `_ready`, so poll for it.
            for _ in connections.poll(POLL_SECONDS if self._ready.is_set() else OWN_POLL_SECONDS):
                pass  # Ignore the events: a connected pod sends nothing before it has received `go`.
            now = time.monotonic()
            if given_up():
                return
            if ready_at is None and self._ready.is_set():
                ready_at = now
            missing = not self._have_come(connections)
            if ready_at is not None and now - ready_at >= self._timeout and missing:
                raise PeersUnreachable(f"after {self._timeout:g} s {self._missing(connections)}")
            if now - told_at >= LOG_EVERY_SECONDS:
                told_at = now
                log.info("%s", self._missing(connections))
                connections.send_all(f"{self._missing(connections)}\n".encode())
        connections.send_all(_GO)

    def _have_come(self, connections: PodConnections) -> bool:
        return len(connections.pods) - (0 in connections.pods) == len(self._others)

    def _missing(self, connections: PodConnections) -> str:
        own = [] if self._ready.is_set() else [0]
        missing = [*own, *(index for index in self._others if index not in connections.pods)]
        return f"{len(missing)} of {len(self._others) + 1} pods are not ready: {_names(self._role, missing)}"


def _names(role: str, indices: Iterable[int]) -> str:
    names = [f"{role}-{index}" for index in indices]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _listen(host: str, port: int, timeout: float, given_up: Callable[[], bool]) -> socket.socket:
    """Listen as `listener_on` does. Raises PortTaken after the timeout."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return listener_on(host, port)
        except OSError as error:
            if time.monotonic() >= deadline or given_up():
                raise PortTaken(
                    f"port {port} of the start barrier can't be opened: {error.strerror}"
                ) from error
            time.sleep(POLL_SECONDS)


def joined(settings: Settings, host: str, port: int, index: int) -> socket.socket:
    """Return a new connection to the pod that listens, on which the hello of a pod is sent. Raises OSError."""
    connection = socket.create_connection((host, port), CONNECT_SECONDS)
    connection.sendall(hello_of(settings.uid, settings.attempt, index))
    return connection


def listener_on(host: str, port: int) -> socket.socket:
    """Listen on all addresses, or on loopback where `host` is loopback. Raises OSError."""
    if host in ("localhost", "127.0.0.1"):
        return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        # The kernel may support IPv6 on a machine without an IPv6 address: then listen by IPv4.
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
    return socket.create_server(("", port), backlog=_BACKLOG)


def _join(
    settings: Settings, host: str, port: int, pods: int, given_up: Callable[[], bool]
) -> socket.socket | None:
    """The side of the other pods: connect, and return the connection after `go`.

    Raises PeersUnreachable when the pod of rank 0 has not sent a line for the peer timeout. While that pod sends
    lines, its own time limit counts.
    """
    hello = hello_of(settings.uid, settings.attempt, settings.pod.index)
    answered_at = logged_at = time.monotonic()
    pause = FIRST_PAUSE_SECONDS
    # Pause longer in a job with many pods: each attempt resolves a name, and thousands would load the cluster's DNS.
    longest_pause = min(LONGEST_PAUSE_SECONDS, max(0.25, pods / 1000))
    while not given_up():
        try:
            with contextlib.ExitStack() as closing:
                connection = closing.enter_context(socket.create_connection((host, port), CONNECT_SECONDS))
                connection.sendall(hello)
                said = _wait_for_go(connection, given_up)
                if said is None:
                    closing.pop_all()
                    return connection
        except socket.gaierror:
            said = "its name does not resolve"
        except OSError as error:
            said = error.strerror or str(error)
        else:
            # Count only a line as an answer: a proxy may accept and close a connection, and a stopped process accepts
            # it and sends nothing.
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
    return None


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
            raise OSError(f"it is no start barrier: it sent a line of more than {_LINE_BYTES} bytes")
        for line in lines:
            if line + b"\n" == _GO:
                return None
            said = line.decode(errors="replace")
            log.info("%s", said)
    return said
