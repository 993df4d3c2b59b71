"""The protocol between rank wrappers and their pod's supervisor: JSON lines over a Unix socket in the pod's
workspace.

A wrapper waits until its pod is ready, attaches when its program runs, reports the program's end, and may request the
final sync. A connection that breaks before the report of the end means that the wrapper was killed. In a pod that
keeps spares, a second connection of the wrapper starts the program: see `spare_starts`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BufferedRWPair
from pathlib import Path
from typing import Any, Protocol

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.1
LINE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Attached:
    """The wrapper of a rank, and the process of the rank's program, which leads a process group. `round`: the round
    in which the rank runs, see `round_messages`.
    """

    rank: int
    wrapper_pid: int
    program_pid: int
    round: int = 0


@dataclass(frozen=True)
class Answer:
    """The answer to a wrapper's request; `fault` describes a failure of the class `cause`."""

    fault: str | None
    report: contract.Report
    cause: FailureClass = FailureClass.ARTIFACTS_UNAVAILABLE


class Supervision(Protocol):
    """The supervisor's side of the protocol. Each call comes from a thread of its own."""

    def ready(self, number: int) -> Answer:
        """Answer when programs of this round may start, or when it is certain that they can't."""

    def attached(self, rank: Attached) -> None:
        """Record that a rank's program runs."""

    def not_started(self, number: int) -> None:
        """Record that a wrapper ended without a program, although `ready` let it start a rank of this round."""

    def died(self, at_ns: int) -> None:
        """Record that a rank's program was killed at this wall-clock time; its output may still be read."""

    def ended(self, rank: Attached, *, failed: bool, cut_off: bool, torn: Sequence[Path]) -> None:
        """Record that a rank's program ended. `cut_off`: the last file that it wrote may be incomplete. `torn`: files
        whose writers were killed after the program's end.
        """

    def lost(self, rank: Attached) -> None:
        """Record that a wrapper disappeared before it reported its program's end."""

    def finish(self, number: int) -> Answer:
        """Upload everything after a program of this round succeeded, then answer."""


class Starts(Protocol):
    """The supervisor's side of the connections on which wrappers start their programs."""

    def serve(self, connection: socket.socket, stream: BufferedRWPair, wanted: dict[str, Any]) -> None:
        """Start a program, and return at the end of the connection. Each call comes from a thread of its own."""


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Yield a path of the socket that fits into the 107 bytes of a socket's address."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class ControlServer:
    """Listens on a Unix socket, and passes the wrappers' messages to the supervision."""

    def __init__(self, path: Path, supervision: Supervision, starts: Starts | None = None) -> None:
        """`starts`: None in a pod that keeps no spares."""
        self._supervision, self._starts = supervision, starts
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        with _short_path(path) as name:
            self._socket.bind(name)
        path.chmod(0o600)
        self._socket.listen(128)

    def start(self) -> None:
        """Serve in the background."""
        threading.Thread(target=self._serve, name="control", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._socket.fileno() < 0 or error.errno == errno.EINVAL:  # `close` has closed the socket.
                    return
                log.warning("the pod's supervisor can't accept the connection of a rank: %s", error)
                time.sleep(_PAUSE_SECONDS)  # Pause: for example, too many files may be open.
                continue
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        rank: Attached | None = None
        let_start: int | None = None
        reported_end = False
        with connection, connection.makefile("rwb") as stream, contextlib.suppress(OSError, ValueError):
            while line := stream.readline(LINE_BYTES):
                call: dict[str, Any] = json.loads(line)
                if "start" in call:
                    if self._starts:
                        self._starts.serve(connection, stream, call["start"])
                elif "attach" in call:
                    rank, let_start = Attached(**call["attach"]), None
                    self._supervision.attached(rank)
                elif "died" in call:
                    self._supervision.died(int(call["died"]["atNs"]))
                elif "ended" in call and rank:
                    reported_end = True
                    end = call["ended"]
                    torn = [Path(path) for path in end["torn"]]
                    failed, cut_off = bool(end["failed"]), bool(end["cutOff"])
                    self._supervision.ended(rank, failed=failed, cut_off=cut_off, torn=torn)
                elif "ready" in call:
                    answer = self._supervision.ready(int(call["ready"]))
                    let_start = None if answer.fault else int(call["ready"])
                    _write(stream, asdict(answer))
                elif "finish" in call:
                    _write(stream, asdict(self._finish(int(call["finish"]))))
        if let_start is not None:
            self._supervision.not_started(let_start)
        if rank and not reported_end:
            self._supervision.lost(rank)

    def _finish(self, number: int) -> Answer:
        """Return the supervision's answer. An exception becomes an answer too, instead of a broken connection."""
        try:
            return self._supervision.finish(number)
        except Exception as error:
            log.exception("the last upload of the pod's artifacts failed")
            return Answer(f"the last upload of the pod's artifacts failed: {error!r}", {})


class SupervisorGone(Exception):
    """The supervisor does not answer any more."""


class ControlClient:
    """A wrapper's connection to its pod's supervisor."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rwb")

    def close(self) -> None:
        """Close a connection that did not attach and only asked whether the pod is ready."""
        self._stream.close()

    def ready(self, number: int) -> Answer:
        """Wait until the pod has restored what programs of this round need. Raises SupervisorGone."""
        return self._ask("ready", number, "the pod's supervisor ended before the artifacts were restored")

    def attach(self, rank: Attached) -> None:
        """Report that the program runs."""
        self._send({"attach": asdict(rank)})

    def died(self, at_ns: int) -> None:
        """Report at once that the program was killed; see `Supervision.died`."""
        self._send({"died": {"atNs": at_ns}})

    def ended(self, *, failed: bool, cut_off: bool, torn: Sequence[Path]) -> None:
        """Report that the program ended; see `Supervision.ended`."""
        self._send({"ended": {"failed": failed, "cutOff": cut_off, "torn": [str(path) for path in torn]}})

    def finish(self, number: int) -> Answer:
        """Request the final sync and wait for it. Raises SupervisorGone.

        The sync begins when the pod's other ranks have ended, however long that takes. Then the supervisor's own
        timeout applies.
        """
        return self._ask("finish", number, "the pod's supervisor ended before the artifacts were uploaded")

    def _ask(self, what: str, number: int, message: str) -> Answer:
        try:
            self._send({what: number})
            line = self._stream.readline(LINE_BYTES)
            if not line:
                raise SupervisorGone(message)
            answer = json.loads(line)
            return Answer(answer["fault"], answer["report"], FailureClass(answer["cause"]))
        except (OSError, ValueError) as error:
            raise SupervisorGone(f"the pod's supervisor does not answer: {error}") from error

    def _send(self, call: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            _write(self._stream, call)


def _write(stream: BufferedRWPair, content: dict[str, Any]) -> None:
    stream.write(json.dumps(content).encode() + b"\n")
    stream.flush()


def connect(path: Path) -> ControlClient | None:
    """Connect to the supervisor of this pod; None without a supervisor."""
    connection = connected(path)
    return ControlClient(connection) if connection else None


def connected(path: Path) -> socket.socket | None:
    """Return a connection to the supervisor of this pod; None without a supervisor."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(path) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        return None
    return connection
