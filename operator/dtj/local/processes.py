"""Finds processes by what the kernel tells of them, and ends them. Standard library only: the guard loads it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_POLL_SECONDS = 0.1
# A process that SIGKILL does not end for so long hangs in the kernel: nobody can do more.
_HOPELESS_SECONDS = 30.0


def marked(variable: str, value: str) -> list[int]:
    """Processes whose environment, as they were started with it, has this variable."""
    mark = f"{variable}={value}".encode()
    return [pid for pid in _all() if mark in _read(pid, "environ").split(b"\0")]


def in_sessions(sessions: Iterable[int]) -> list[int]:
    """Processes, other than those that only wait to be reaped, of these sessions."""
    wanted = set(sessions)
    return [pid for pid in _all() if _session(pid) in wanted]


def is_alive(pid: int) -> bool:
    """Whether it runs; one that only waits to be reaped does not."""
    return _session(pid) is not None


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_marked(variable: str, value: str, patience: float) -> None:
    """End all processes with this mark: SIGTERM to those that lead a session, `patience` seconds later SIGKILL to
    all. Returns when none is left.
    """
    leaders = {pid for pid in marked(variable, value) if _session(pid) == pid}
    if patience:
        send(leaders, signal.SIGTERM)
    kill_from = time.monotonic() + patience
    found_none = False
    while time.monotonic() < kill_from + _HOPELESS_SECONDS:
        # Some may have cleaned their environment: their session tells them.
        left = {*marked(variable, value), *in_sessions(leaders)}
        if not left and found_none:
            return
        # In the midst of an exec a process shows no environment: one look is not enough.
        found_none = not left
        if time.monotonic() >= kill_from:
            send(left, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def kill_session(leader: int) -> None:
    """Kill what is left of a session, as the end of a container's first process does."""
    deadline = time.monotonic() + _HOPELESS_SECONDS
    while (left := in_sessions([leader])) and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        time.sleep(0.01)


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # gone meanwhile, or somebody else's
        return b""


def _session(pid: int) -> int | None:
    # The name, in parentheses, may hold anything; behind it: state, parent, process group, session.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[3]) if len(fields) > 3 and fields[0] != b"Z" else None
