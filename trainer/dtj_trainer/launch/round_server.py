"""The connections of the rounds: the coordinator's server, and an agent's link to it, for `round_messages`.

The server has one thread and one selector, however many pods there are. A link has one thread.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

from dtj_trainer.launch.peers import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from dtj_trainer.launch.pod_connections import (
    LINE_BYTES,
    Came,
    ConnectionEvent,
    PodConnections,
    Said,
    Went,
    break_off,
    hold,
)
from dtj_trainer.launch.restart_in_place import Close, Coordinator, CoordinatorAction, Prepare, Say, Tell
from dtj_trainer.launch.round_agent import Agent, AgentAction, Record, Send
from dtj_trainer.launch.round_messages import (
    InvalidMessage,
    Join,
    Joined,
    Snapshot,
    agent_message,
    coordinator_message,
    line_of,
)
from dtj_trainer.launch.termination import RankExit

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
_PREPARING_POLL_SECONDS = 0.02
_LONGEST_JOIN_PAUSE_SECONDS = 15.0
"""The longest pause between two attempts to join: if the coordinator's port is blocked, thousands of agents may try
as long as the job runs."""


class RoundServer:
    """Serves the coordinator to the agents of a job, in a thread."""

    def __init__(
        self,
        connections: PodConnections,
        coordinator: Coordinator,
        prepare: Callable[[], tuple[Snapshot | None, int]] | None = None,
    ) -> None:
        """`connections`: entered already, and closed by `close`. `prepare`: finds the newest snapshot and a free
        port, in a thread of its own; any exception ends the rounds. None: the coordinator asks an agent.
        """
        self._connections, self._coordinator, self._prepare = connections, coordinator, prepare
        self._pods = dict(connections.senders)
        """The pods whose hello was read, by connection."""
        self._joined: set[int] = set()
        self._pool = ThreadPoolExecutor(1, "round-prepare")
        self._prepared: Future[tuple[Snapshot | None, int]] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)

    def start(self) -> int:
        """Serve in the background until `close`; return the thread. An agent that joins too late gets `end`."""
        self._thread.start()
        assert self._thread.ident is not None
        return self._thread.ident

    def close(self) -> None:
        """Tell the agents that no round follows, close all connections, and end the thread."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(self._connections):
            while not self._closing.is_set():
                for event in self._connections.poll(
                    _PREPARING_POLL_SECONDS if self._prepared else POLL_SECONDS
                ):
                    self._act(self._take(event, time.monotonic()))
                now = time.monotonic()
                if self._prepared and self._prepared.done():
                    self._act(self._take_prepared(self._prepared, now))
                self._act(self._coordinator.tick(now))
            self._act(self._coordinator.closes())
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _take(self, event: ConnectionEvent, now: float) -> list[CoordinatorAction]:
        match event:
            case Came(number, pod):
                self._pods[number] = pod
            case Went(number):
                del self._pods[number]
                if number in self._joined:
                    self._joined.remove(number)
                    return self._coordinator.broke(number, now)
            case Said(number, line):
                return self._hear(number, line, now)
        return []

    def _hear(self, number: int, line: bytes, now: float) -> list[CoordinatorAction]:
        pod = self._pods[number]
        try:
            message = agent_message(line)
        except InvalidMessage as error:
            log.warning("the pod with index %d sent an invalid message about restarts: %s", pod.index, error)
            self._connections.drop(number)
            return self._take(Went(number), now)
        if number in self._joined:
            return self._coordinator.said(number, message, now)
        if isinstance(message, Join):
            self._joined.add(number)
            return self._coordinator.joined(number, pod.index, pod.birth, message, now)
        return []

    def _act(self, actions: list[CoordinatorAction]) -> None:
        for action in actions:
            match action:
                case Tell(message):
                    self._connections.send_all(line_of(message))
                case Say(number, message):
                    self._connections.send(line_of(message), number)
                case Close(number) if number in self._connections:
                    self._connections.drop(number)
                    self._joined.discard(number)
                    del self._pods[number]
                case Prepare() if self._prepare:
                    self._prepared = self._pool.submit(self._prepare)

    def _take_prepared(
        self, prepared: Future[tuple[Snapshot | None, int]], now: float
    ) -> list[CoordinatorAction]:
        self._prepared = None
        try:
            newest, port = prepared.result()
        except Exception as error:
            log.exception("the restart in place can't be prepared")
            return self._coordinator.unprepared(f"the restart in place can't be prepared: {error}")
        return self._coordinator.prepared(newest, port, now)


class RoundLink:
    """An agent's connection to the coordinator. Its events may come from any thread."""

    def __init__(
        self,
        agent: Agent,
        connect: Callable[[], socket.socket],
        record: Callable[[RankExit | None], None],
        take: Callable[[AgentAction], None],
    ) -> None:
        """`connect`: returns a new connection on which the hello is sent, or raises OSError. `record`: writes the
        termination message, or removes it. `take`: gets every other action, without waiting for it to be carried out.
        """
        self._agent, self._connect, self._record, self._take = agent, connect, record, take
        self._lock = threading.RLock()
        self._first: socket.socket | None = None
        self._socket: socket.socket | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="round-link", daemon=True)

    def start(self, first: socket.socket | None = None) -> None:
        """Join in the background. `first`: a connection on which the hello is sent already."""
        self._first = first
        self._thread.start()

    def happened(self, event: Callable[[Agent, float], list[AgentAction]]) -> None:
        """Take in an event of the pod, for example `lambda agent, now: agent.failed(report, now)`.

        Do not call it in a signal handler, which may interrupt another call.
        """
        with self._lock:
            self._act(event(self._agent, time.monotonic()))

    def close(self) -> None:
        """Close the connection, and end the thread. A connection attempt may last on for seconds."""
        self._closing.set()
        with self._lock:
            if self._socket is not None:
                break_off(self._socket)

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        connection, self._first = self._first, None
        while not self._closing.is_set() and not self._agent.over:
            try:
                with connection or self._connect() as connected:
                    self._serve(connected)
                pause = FIRST_PAUSE_SECONDS
            except OSError as error:
                if self._agent.began:
                    log.info(
                        "the pod that coordinates restarts in place can't be reached: %s",
                        error.strerror or error,
                    )
            connection = None
            self.happened(lambda agent, now: agent.broke(now))
            self.happened(lambda agent, now: agent.tick(now))
            self._closing.wait(pause)
            pause = min(
                pause * 1.5, LONGEST_PAUSE_SECONDS if self._agent.began else _LONGEST_JOIN_PAUSE_SECONDS
            )

    def _serve(self, connection: socket.socket) -> None:
        """Read until the connection ends, or the rounds are over."""
        hold(connection)
        connection.settimeout(POLL_SECONDS)
        with self._lock:
            self._socket = connection
            self._act(self._agent.connected())
        received = b""
        try:
            while not self._closing.is_set() and len(received) < LINE_BYTES:
                try:
                    block = connection.recv(LINE_BYTES)
                except TimeoutError:
                    self.happened(lambda agent, now: agent.tick(now))
                    continue
                if not block:
                    return
                *lines, received = (received + block).split(b"\n")
                for line in lines:
                    self._hear(line)
        finally:
            with self._lock:
                self._socket = None

    def _hear(self, line: bytes) -> None:
        try:
            message = coordinator_message(line)
        except InvalidMessage as error:
            # The start barrier sends texts in place of messages before `go`, and to a pod of an earlier attempt.
            text = line[:LINE_BYTES].decode(errors="replace")
            log.info(
                "the pod that coordinates restarts in place sent a text, no message (%s): %s", error, text
            )
            return
        self.happened(lambda agent, now: agent.heard(message, now))
        if isinstance(message, Joined):
            log.info("all pods have joined: a failure is followed by a restart in place")

    def _act(self, actions: list[AgentAction]) -> None:
        for action in actions:
            match action:
                case Send(message):
                    self._send(line_of(message))
                case Record(report):
                    self._record(report)
                case _:
                    self._take(action)

    def _send(self, line: bytes) -> None:
        connection = self._socket
        if connection is None:
            return
        try:
            connection.sendall(line)
        except OSError:
            break_off(connection)  # `_run` then reads the end of the connection, and connects again.
