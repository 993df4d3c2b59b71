"""Find processes in /proc and end them. The guard imports this module, which uses the standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_POLL_SECONDS = 0.1
# A process that survives SIGKILL for this many seconds hangs in the kernel. Nothing can end such a process.
_HOPELESS_SECONDS = 30.0
_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """A process. After a process has ended, its pid may name another process, which was started at another time."""

    pid: int
    started: int
    parent: int
    session: int
    processor_seconds: float
    """Processor time of the process, and of ended children for which the process has waited."""


def marked(variable: str, value: str) -> list[int]:
    """Return the processes that were started with this value of the variable in their environment."""
    mark = f"{variable}={value}".encode()
    return [pid for pid in _all() if mark in _read(pid, "environ").split(b"\0")]


def running() -> list[Stat]:
    """Return all processes, without zombies."""
    stats = ((pid, _fields(pid)) for pid in _all())
    return [
        Stat(pid, int(stat[19]), int(stat[1]), int(stat[3]), sum(map(int, stat[11:15])) / _TICKS)
        for pid, stat in stats
        if stat and stat[0] != b"Z"
    ]


def variable_of(pid: int, name: str) -> str | None:
    """Return the value of an environment variable with which a process was started; None if it was not set."""
    for word in _read(pid, "environ").split(b"\0"):
        if word.startswith(f"{name}=".encode()):
            return os.fsdecode(word).partition("=")[2]
    return None


def in_sessions(sessions: Iterable[int]) -> list[int]:
    """Return the processes of these sessions, without zombies."""
    wanted = set(sessions)
    return [process.pid for process in running() if process.session in wanted]


def is_alive(pid: int) -> bool:
    """Return whether the process runs. A zombie does not run."""
    return _session(pid) is not None


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to the processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_marked(variable: str, value: str, patience: float) -> list[int]:
    """End all processes that have this variable in their environment, and all descendants of these processes.

    Send SIGTERM to the session leaders, and SIGKILL to all processes `patience` seconds later. Return when no such
    process is left, or when a process survives SIGKILL. Return the processes that are left.
    """
    leaders = {pid for pid in marked(variable, value) if _session(pid) == pid}
    if patience:
        send(leaders, signal.SIGTERM)
    kill_from = time.monotonic() + patience
    known: set[tuple[int, int]] = set()
    left: list[int] = []
    found_none = False
    while time.monotonic() < kill_from + _HOPELESS_SECONDS:
        # A descendant may have been started without the mark (`variable`) in its environment. Then its session or its
        # parent identifies it. A process whose parent has ended is known from an earlier search.
        alive, with_mark = running(), {*marked(variable, value)}
        found = {
            each
            for each in alive
            if each.pid in with_mark or each.session in leaders or (each.pid, each.started) in known
        }
        found |= _descendants(found, alive)
        known = {(each.pid, each.started) for each in found}
        left = [each.pid for each in found if each.pid != os.getpid()]
        if not left and found_none:
            return []
        # During an exec, /proc shows no environment of the process. Therefore two searches must find no process.
        found_none = not left
        if time.monotonic() >= kill_from:
            send(left, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    return sorted(left)


def kill_session(leader: int) -> None:
    """Kill the remaining processes of a session, as the kernel does when the first process of a container ends."""
    deadline = time.monotonic() + _HOPELESS_SECONDS
    while (left := in_sessions([leader])) and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        time.sleep(0.01)


class Adopted:
    """Processes of a run whose parents have ended. The kernel makes this process (a subreaper) their parent.

    A process that has emptied its environment and left its session can be found only in this way.
    """

    def __init__(self) -> None:
        """Adopt processes from now on. Existing children of this process are not among them."""
        self._others = {*_children()}
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def kill(self) -> list[int]:
        """Kill the adopted processes, and return those that have not ended. Their children are adopted next.

        Call it only while no process that this process has started since `__init__` is alive.
        """
        left = []
        for pid in _children():
            if pid not in self._others:
                send([pid], signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
                left.append(pid)
        return left

    def kill_all(self) -> None:
        """Kill the adopted processes until none is left, and adopt none any more."""
        deadline = time.monotonic() + _HOPELESS_SECONDS
        while self.kill() and time.monotonic() < deadline:
            time.sleep(0.01)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children() -> list[int]:
    """Return the children of this process, including zombies."""
    return [pid for pid in _all() if (stat := _fields(pid)) and int(stat[1]) == os.getpid()]


def _descendants(of: Iterable[Stat], among: Iterable[Stat]) -> set[Stat]:
    """Return the processes `among` these that descend from the processes `of`."""
    children: dict[int, list[Stat]] = {}
    for process in among:
        children.setdefault(process.parent, []).append(process)
    found: set[Stat] = set()
    parents = list(of)
    while parents:
        new = [child for child in children.get(parents.pop().pid, []) if child not in found]
        found.update(new)
        parents += new
    return found


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # The process has ended, or belongs to another user.
        return b""


def _fields(pid: int) -> list[bytes]:
    # Split after the last parenthesis: the name before it may contain any character. State, parent, process group and
    # session follow; index 19 is the start time.
    return _read(pid, "stat").rpartition(b")")[2].split()


def _session(pid: int) -> int | None:
    fields = _fields(pid)
    return int(fields[3]) if fields and fields[0] != b"Z" else None
