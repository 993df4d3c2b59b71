"""Find processes in /proc and end them. The guard imports this module, which uses the standard library only."""

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
    """Return the processes that were started with this value of the variable in their environment."""
    mark = f"{variable}={value}".encode()
    return [pid for pid in _all() if mark in _read(pid, "environ").split(b"\0")]


def in_sessions(sessions: Iterable[int]) -> list[int]:
    """Return the processes of these sessions, without zombies."""
    wanted = set(sessions)
    return [pid for pid in _all() if _session(pid) in wanted]


def is_alive(pid: int) -> bool:
    """Return whether the process runs. A zombie does not run."""
    return _session(pid) is not None


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to the processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_marked(variable: str, value: str, patience: float) -> None:
    """End all processes that have this variable in their environment.

    Send SIGTERM to the session leaders, and SIGKILL to all processes `patience` seconds later. Return when no such
    process is left, or when a process survives SIGKILL.
    """
    leaders = {pid for pid in marked(variable, value) if _session(pid) == pid}
    if patience:
        send(leaders, signal.SIGTERM)
    kill_from = time.monotonic() + patience
    found_none = False
    while time.monotonic() < kill_from + _HOPELESS_SECONDS:
        # A process may have been started without the variable. Then its session identifies the process.
        left = {*marked(variable, value), *in_sessions(leaders)}
        if not left and found_none:
            return
        # During an exec, /proc shows no environment of the process. Therefore two searches must find no process.
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
