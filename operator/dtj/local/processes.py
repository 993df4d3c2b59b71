"""Finds processes in /proc and ends them. The guard imports this module: standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_POLL_SECONDS = 0.1
# A process that survives SIGKILL for this many seconds hangs in the kernel. Nothing can end such a process.
_HOPELESS_SECONDS = 30.0


def marked(variable: str, value: str) -> list[int]:
    """Processes that were started with this variable in their environment."""
    mark = f"{variable}={value}".encode()
    return [pid for pid in _all() if mark in _read(pid, "environ").split(b"\0")]


def in_sessions(sessions: Iterable[int]) -> list[int]:
    """Processes of these sessions, without zombies."""
    wanted = set(sessions)
    return [pid for pid in _all() if _session(pid) in wanted]


def is_alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not run."""
    return _session(pid) is not None


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to the processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_marked(variable: str, value: str, patience: float) -> None:
    """End all processes with this mark: SIGTERM to session leaders, and SIGKILL to all `patience` seconds later.
    Returns when no process with the mark is left.
    """
    leaders = {pid for pid in marked(variable, value) if _session(pid) == pid}
    if patience:
        send(leaders, signal.SIGTERM)
    kill_from = time.monotonic() + patience
    found_none = False
    while time.monotonic() < kill_from + _HOPELESS_SECONDS:
        # A process may have been started without the mark. The session of its leader identifies it.
        left = {*marked(variable, value), *in_sessions(leaders)}
        if not left and found_none:
            return
        # A process shows no environment in the middle of an exec, so the search must find nothing twice.
        found_none = not left
        if time.monotonic() >= kill_from:
            send(left, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def kill_session(leader: int) -> None:
    """Kill the remaining processes of a session, as the kernel does when the first process of a container ends."""
    deadline = time.monotonic() + _HOPELESS_SECONDS
    while (left := in_sessions([leader])) and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        time.sleep(0.01)


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # the process has ended, or belongs to another user
        return b""


def _session(pid: int) -> int | None:
    # The name in parentheses may contain any character. State, parent, process group and session follow.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[3]) if len(fields) > 3 and fields[0] != b"Z" else None
