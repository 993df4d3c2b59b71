"""The processes that outlive the program that started them: dtj-launch adopts, reaps and ends them.

Otherwise a process that called setsid(2) goes on after the program's end, holds GPUs and ports, and writes files
while they are uploaded.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.open_files import written_by
from dtj_trainer.launch.process_tree import described, own_children, with_descendants
from dtj_trainer.launch.running_programs import runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

END_BY_ITSELF_SECONDS = 1.0
"""Seconds for processes that end together with their program, such as Python's resource tracker."""
KILL_SECONDS = 5.0
"""Seconds for killed processes to end. The kernel may keep a process that waits for a device or for a file server."""
POLL_SECONDS = 0.02
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends, and reap such children when they end.

    See PR_SET_CHILD_SUBREAPER in prctl(2). Call the function in the main thread.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, lambda *_: _reap_adopted())


def end_descendants(kept: Iterable[Path]) -> list[Path]:
    """End what the ended programs of this process have left behind; do nothing in a process that adopts no orphans.

    Processes in this process's own group are its helpers, and stay. Return the files below the folders `kept` that a
    process had open for writing when it was killed: they may be incomplete.
    """
    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts))
    by_themselves = time.monotonic() + END_BY_ITSELF_SECONDS
    while adopts.value and (left := _left_behind()):
        if time.monotonic() >= by_themselves:
            return _kill(left, kept)
        time.sleep(POLL_SECONDS)
    return []


def stop_writers(group: int, kept: Iterable[Path]) -> list[Path]:
    """Stop the processes of a process group, which is about to be killed.

    Return the files below the folders `kept` that one of them has open for writing: they may be incomplete.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGSTOP)
    files = _files_by_place(kept)
    members = [pid for pid in with_descendants(os.getpid())[1:] if _group_of(pid) == group]
    return [path for pid in members for path in _torn_by(pid, files)]


def _torn_by(pid: int, files: Mapping[int, Mapping[int, Path]]) -> list[Path]:
    torn = _written_by(pid, files)
    for path in torn:
        log.warning("process %d was writing %s", pid, path)
    return torn


def _kill(left: list[int], kept: Iterable[Path]) -> list[Path]:
    deadline, told = time.monotonic() + KILL_SECONDS, set[int]()
    torn: list[Path] = []
    while left and time.monotonic() < deadline:
        for pid in left:  # Before any ends: another one might start a new one, or complete what it does.
            _send(pid, signal.SIGSTOP)
        new = set(left) - told
        files = _files_by_place(kept) if new else {}
        for pid in new:
            log.warning("process %d outlived the program and is killed: %s", pid, described(pid))
            torn += _torn_by(pid, files)
        told |= new
        for pid in left:
            _send(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
        left = _left_behind()
    if left:
        log.warning("processes can't be ended: %s", ", ".join(map(str, left)))
    return torn


def _files_by_place(folders: Iterable[Path]) -> dict[int, dict[int, Path]]:
    """Return the files below some folders by device and inode: a process may know them by other paths."""
    found: dict[int, dict[int, Path]] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            with suppress(OSError):
                status = path.lstat()
                found.setdefault(status.st_dev, {})[status.st_ino] = path
    return found


def _written_by(pid: int, files: Mapping[int, Mapping[int, Path]]) -> list[Path]:
    return [
        paths[inode]
        for device, paths in files.items()
        for inode in written_by(str(pid), device)
        if inode in paths
    ]


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _left_behind() -> list[int]:
    """Return the descendants that still run, without this process's helpers, after reaping those that ended."""
    _reap_adopted()
    own, group = os.getpid(), os.getpgrp()
    descendants = with_descendants(own)[1:]
    return [pid for pid in descendants if _group_of(pid) not in (group, None) and runs(pid)]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _reap_adopted() -> None:
    """Reap the ended children that this process has not started: `subprocess` waits for the others.

    A child that this process started is in this process's group, or leads a group in this process's session.
    """
    own_group, own_session = os.getpgrp(), os.getsid(0)
    for pid in own_children():
        with suppress(ProcessLookupError, ChildProcessError):
            group = os.getpgid(pid)
            if group != own_group and (group != pid or os.getsid(pid) != own_session):
                os.waitpid(pid, os.WNOHANG)
