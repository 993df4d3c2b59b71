"""How rank wrappers and their pod's supervisor talk: JSON lines over a socket in the pod's own folder.

A wrapper waits until its pod is ready, attaches when its program runs, tells its end, and may ask for the final
sync. A connection that breaks before the end was told means that the wrapper was killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BufferedRWPair
from pathlib import Path
from typing import Any, Protocol

from dtj_trainer import contract
from dtj_trainer.failure_class import FailureClass

log = logging.getLogger(__name__)

_LONGEST_LINE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Attached:
    """A rank's wrapper and the leader of its program's process group."""

    rank: int
    wrapper_pid: int
    program_pid: int


@dataclass(frozen=True)
class Answer:
    """The answer to a wrapper that asked for something; `fault` when it could not be done, of which class."""

    fault: str | None
    report: contract.Report
    cause: FailureClass = FailureClass.ARTIFACTS_UNAVAILABLE


class Supervision(Protocol):
    """What a supervisor does with the calls of wrappers, each from a thread of its own."""

    def ready(self) -> Answer:
        """Answer once programs may start, or can't."""

    def attached(self, rank: Attached) -> None:
        """A rank's program runs."""

    def died(self, at_ns: int) -> None:
        """A rank's program was killed at this wall-clock time; its output may not be read to the end yet."""

    def ended(self, rank: Attached, *, cut_off: bool) -> None:
        """A rank's program ended; with `cut_off` what it wrote last may be half of it."""

    def lost(self, rank: Attached) -> None:
        """A wrapper is gone without having told its program's end."""

    def finish(self) -> Answer:
        """Upload everything, then answer."""


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A name for the socket that fits into the 107 bytes that a socket's address holds."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class ControlServer:
    """Listens on a Unix socket and hands what wrappers say to the supervision."""

    def __init__(self, path: Path, supervision: Supervision) -> None:
        self._supervision = supervision
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        with _short_path(path) as name:
            self._socket.bind(name)
        path.chmod(0o600)
        self._socket.listen(128)

    def start(self) -> None:
        """Serve in the background."""
        threading.Thread(target=self._serve, name="control", daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        rank: Attached | None = None
        told_end = False
        with connection, connection.makefile("rwb") as stream, contextlib.suppress(OSError, ValueError):
            while line := stream.readline(_LONGEST_LINE_BYTES):
                call: dict[str, Any] = json.loads(line)
                if "attach" in call:
                    rank = Attached(**call["attach"])
                    self._supervision.attached(rank)
                elif "died" in call:
                    self._supervision.died(int(call["died"]["atNs"]))
                elif "ended" in call and rank:
                    told_end = True
                    self._supervision.ended(rank, cut_off=bool(call["ended"]["cutOff"]))
                elif "ready" in call:
                    _write(stream, asdict(self._supervision.ready()))
                elif "finish" in call:
                    _write(stream, asdict(self._finish()))
        if rank and not told_end:
            self._supervision.lost(rank)

    def _finish(self) -> Answer:
        """The supervision's answer; what it failed with is an answer too, not a broken connection."""
        try:
            return self._supervision.finish()
        except Exception as error:
            log.exception("the final sync failed")
            return Answer(f"the final sync failed: {error!r}", {})


class SupervisorGone(Exception):
    """The supervisor does not answer any more."""


class ControlClient:
    """A wrapper's connection to its pod's supervisor."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rwb")

    def close(self) -> None:
        """End the connection of one that has not attached and only asked whether the pod is ready."""
        self._stream.close()

    def ready(self) -> Answer:
        """Wait until the pod has restored what programs need; raises SupervisorGone."""
        return self._ask("ready", "the pod's supervisor ended before the artifacts were restored")

    def attach(self, rank: Attached) -> None:
        """Tell that the program runs."""
        self._send({"attach": asdict(rank)})

    def died(self, at_ns: int) -> None:
        """Tell at once that the program was killed; see `Supervision.died`."""
        self._send({"died": {"atNs": at_ns}})

    def ended(self, *, cut_off: bool) -> None:
        """Tell that it ended; see `Supervision.ended`."""
        self._send({"ended": {"cutOff": cut_off}})

    def finish(self) -> Answer:
        """Ask for the final sync and wait for it; raises SupervisorGone.

        It begins when the pod's other ranks have ended, whenever that is; then the supervisor's own
        time-out holds.
        """
        return self._ask("finish", "the pod's supervisor ended before the artifacts were uploaded")

    def _ask(self, what: str, gone: str) -> Answer:
        try:
            self._send({what: True})
            line = self._stream.readline(_LONGEST_LINE_BYTES)
            if not line:
                raise SupervisorGone(gone)
            said = json.loads(line)
            return Answer(said["fault"], said["report"], FailureClass(said["cause"]))
        except (OSError, ValueError) as error:
            raise SupervisorGone(f"the pod's supervisor does not answer: {error}") from error

    def _send(self, call: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            _write(self._stream, call)


def _write(stream: BufferedRWPair, said: dict[str, Any]) -> None:
    stream.write(json.dumps(said).encode() + b"\n")
    stream.flush()


def connect(path: Path) -> ControlClient | None:
    """Reach the supervisor of this pod; None when there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(path) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        return None
    return ControlClient(connection)
