"""How the program of a rank starts in a worker's pod that keeps spares.

The spares are the agent's, because the wrappers of ranks end between two rounds. A wrapper tells the agent, on a
connection of its own, what it is about to start. The agent answers with one line:

* `pid`: the spare of the rank is the program now. The descriptor of its output comes with the line. The exit code
  follows when the program ends, which is a child of the agent.
* `words`: the wrapper starts the program by these words, to have a spare later. The descriptor of the memory file in
  which the program notes its imports comes with the line, and word `at` names it.
* `fault`: the program must not start.
* None of them: the program starts as in a pod without spares.

The connection lasts as long as the program. If the wrapper ends first, the agent ends the spare that became the
program. If the agent ends first, the kernel does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BufferedRWPair
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dtj_trainer import contract
from dtj_trainer.launch.processes import end_adopted, environment_of
from dtj_trainer.launch.program import Started, Starter, start_process
from dtj_trainer.launch.supervisor_socket import LINE_BYTES, connected

if TYPE_CHECKING:
    from dtj_trainer.launch.spare import Recording, Spares

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Wanted:
    """The program that a wrapper is about to start. `round`: that of the rank."""

    rank: int
    round: int
    command: list[str]
    environment: dict[str, str]
    folder: str


# RankStarts is the side of the agent.


@dataclass(eq=False)
class Request:
    """A wrapper's request, which the main thread answers: what a thread has started ends with the thread."""

    wanted: Wanted
    wrapper: int
    """The process of the wrapper."""
    way: subprocess.Popen[bytes] | Recording | str | None = None
    """The program's process, how the program starts, or why it must not start; None: it starts without spares."""
    answered: threading.Event = field(default_factory=threading.Event)
    over: bool = False
    """Whether the connection has ended."""


class RankStarts:
    """Implements `control.Starts` with the spares of a pod."""

    def __init__(self, spares: Spares, ask: Callable[[Request], None]) -> None:
        """`ask`: lets the main thread call `answer` with a request."""
        self._spares, self._ask = spares, ask
        self._closed = threading.Event()

    def answer(self, request: Request, *, late: bool) -> None:
        """Decide how a program starts. Call it in the main thread. `late`: whether its round has ended."""
        from dtj_trainer.launch.surroundings import Surroundings

        wanted, name = request.wanted, f"rank {request.wanted.rank}"
        around = None if late or self._closed.is_set() else Surroundings.of(request.wrapper)
        if around is not None:
            try:
                request.way = self._spares.begin(
                    name, wanted.command, wanted.environment, Path(wanted.folder), around
                )
            except OSError as error:
                request.way = str(error.strerror)
            else:
                self._spares.runs(name, lambda: request.way is not None and not request.over)
        request.answered.set()

    def tend(self, saved: Callable[[], bool]) -> None:
        """See `Spares.tend`."""
        self._spares.tend(saved)

    def close(self) -> None:
        """End the spares; programs start as without them. Call it in the main thread."""
        self._closed.set()
        self._spares.close()

    def serve(self, connection: socket.socket, stream: BufferedRWPair, wanted: dict[str, Any]) -> None:
        """Let the main thread start a program, tell the wrapper how, and wait until one of both has ended."""
        request = Request(Wanted(**wanted), _peer(connection))
        killed = self._spares.killed()
        self._ask(request)
        while not (request.answered.wait(_POLL_SECONDS) or self._closed.is_set()):
            pass
        way = request.way
        try:
            _tell(connection, way)
            if isinstance(way, subprocess.Popen):
                threading.Thread(target=_tell_end, args=(connection, way), daemon=True).start()
            while stream.readline(LINE_BYTES):
                connection.sendall(_line({"spares": self._spares.killed() - killed}))
        finally:
            request.over = True
            if isinstance(way, subprocess.Popen) and way.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(way.pid, signal.SIGKILL)
                way.wait()


def _peer(connection: socket.socket) -> int:
    """Return the process at the other end of a connection: the one that has connected, or the one that listens."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def _tell(connection: socket.socket, way: subprocess.Popen[bytes] | Recording | str | None) -> None:
    match way:
        case None:
            connection.sendall(_line({}))
        case str():
            connection.sendall(_line({"fault": way}))
        case subprocess.Popen(pid=pid, stdout=output):
            assert output is not None
            with output:
                _send(connection, _line({"pid": pid}), output.fileno())
        case (words, at, memory):
            _send(connection, _line({"words": words, "at": at}), memory)


def _send(connection: socket.socket, line: bytes, descriptor: int) -> None:
    sent = socket.send_fds(connection, [line], [descriptor])
    connection.sendall(line[sent:])


def _tell_end(connection: socket.socket, program: subprocess.Popen[bytes]) -> None:
    code = program.wait()
    with contextlib.suppress(OSError):  # The wrapper has ended.
        connection.sendall(_line({"code": code}))


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


# RankStarter is the side of a rank's wrapper.


class RankStarter(Starter):
    """Starts the program of a rank as the agent of its pod says."""

    def __init__(self, path: Path, rank: int, number: int) -> None:
        """`path`: the agent's socket. `number`: the round."""
        self._path, self._rank, self._round = path, rank, number
        self._connection: socket.socket | None = None
        self._received = b""
        self._by_spare = False

    def start(self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None) -> Started:
        """See `Starter.start`."""
        wanted = Wanted(self._rank, self._round, list(command), dict(environment), str(folder or Path.cwd()))
        line = _line({"start": asdict(wanted)})
        self._connection = connected(self._path) if len(line) < LINE_BYTES else None
        answer, descriptor = self._ask(line)
        match answer:
            case {"fault": fault}:
                raise OSError(None, fault)
            case {"pid": pid}:
                self._by_spare = True
                return _BySpare(pid, os.fdopen(descriptor, "rb", buffering=0), self._end)
            case {"words": words, "at": at}:
                words[at] = f"record:{descriptor}"
                try:
                    return start_process(words, environment, folder, pass_fds=(descriptor,))
                finally:
                    os.close(descriptor)
            case _:
                return start_process(command, environment, folder)

    def oom_kills(self) -> int | None:
        """See `Starter.oom_kills`: without the spares that the kernel has killed since `start`."""
        kills = super().oom_kills()
        answer, _ = self._ask(_line({"oomKills": None})) if self._connection else ({}, -1)
        return None if kills is None else kills - int(answer.get("spares", 0))

    def end_orphans(self, kept: Sequence[Path]) -> list[Path]:
        """End the processes that the ended program has left to the agent, its parent; return the files that are torn,
        see `LeftBehind`. The connection to the agent ends.
        """
        if self._connection is None:
            return []
        with self._connection as connection:
            agent = _peer(connection)
        self._connection = None

        def belongs(pid: int) -> bool:
            return contract.rank_of(environment_of(pid)) == self._rank

        return end_adopted(agent, belongs, kept).torn if self._by_spare else []

    def _ask(self, line: bytes) -> tuple[dict[str, Any], int]:
        """Return the agent's answer, and the descriptor that came with it or -1. Without an agent, an empty one."""
        if self._connection is None:
            return {}, -1
        with contextlib.suppress(OSError):
            self._connection.sendall(line)
        return self._heard()

    def _heard(self) -> tuple[dict[str, Any], int]:
        assert self._connection is not None
        descriptors: list[int] = []
        while b"\n" not in self._received:
            try:
                part, new, _, _ = socket.recv_fds(self._connection, 1 << 16, 1, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                part, new = b"", []
            descriptors += new
            if not part:
                return {}, -1
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer, descriptors[0] if descriptors else -1

    def _end(self) -> int:
        """Wait for the exit code. An agent that ends takes the program with it."""
        answer, _ = self._heard()
        return int(answer.get("code", -signal.SIGKILL))


class _BySpare(Started):
    """A program that is a child of the agent."""

    def __init__(self, pid: int, stdout: IO[bytes], end: Callable[[], int]) -> None:
        self.pid, self.stdout = pid, stdout
        self._end, self._lock = end, threading.Lock()
        self._code: int | None = None

    def send_signal(self, sig: int) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def wait(self, timeout: float | None = None) -> int:
        del timeout
        with self._lock:
            if self._code is None:
                self._code = self._end()
            return self._code
