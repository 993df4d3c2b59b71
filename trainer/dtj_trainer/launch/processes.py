"""The processes of a container: those of its programs, and those that outlive the program that started them."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer.artifacts.open_files import written_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


# These functions read the processes of this machine, or of this container, from /proc.

MOST_CHARACTERS = 300


def children_by_parent() -> dict[int, list[int]]:
    """Return the process ids of the children of each process that has some, in ascending order."""
    children: dict[int, list[int]] = {}
    for process in numbered(Path("/proc")):
        # The fields after the name, which may contain any character, are state and parent.
        rest = read(process / "stat").rpartition(")")[2].split()
        if rest:
            children.setdefault(int(rest[1]), []).append(int(process.name))
    return {parent: sorted(found) for parent, found in children.items()}


def with_descendants(first: int) -> list[int]:
    """Return a process and all its descendants."""
    children = children_by_parent()
    found = [first]
    for pid in found:
        found += children.get(pid, ())
    return found


def own_children() -> list[int]:
    """Return this process's children, ended ones among them."""
    own = os.getpid()
    try:
        # These files are far cheaper to read than /proc/*/stat. A kernel may be built without them, see proc(5).
        texts = [(task / "children").read_text() for task in numbered(Path(f"/proc/{own}/task"))]
    except OSError:
        return children_by_parent().get(own, [])
    return [int(pid) for text in texts for pid in text.split()]


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment with which a process started; empty for a process that has ended or can't be read."""
    words = read(Path(f"/proc/{pid}/environ")).split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def command_of(pid: int) -> list[str]:
    """Return the words of a process's command line; empty for a process that has ended or can't be read."""
    return read(Path(f"/proc/{pid}/cmdline")).split("\0")[:-1]


def described(pid: int) -> str:
    """Return the command line of a process on one line of at most MOST_CHARACTERS."""
    return " ".join(command_of(pid)).replace("\n", " ")[:MOST_CHARACTERS]


def numbered(folder: Path) -> list[Path]:
    """Return the entries of a folder in /proc that are named by a process or a thread."""
    try:
        return [path for path in folder.iterdir() if path.name.isdecimal()]
    except OSError:
        return []


def read(path: Path) -> str:
    """Return the text of a file in /proc; empty for a process that has ended or can't be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# RunningPrograms has the programs that run in a pod. `runs` reads whether the kernel has begun to end a process.

_STATE, _FLAGS = 0, 6
"""Fields of /proc/<pid>/stat after the command's name, see proc_pid_stat(5)."""
_PF_EXITING = 0x4
"""The kernel sets this flag before it closes the files of the process."""


class RunningPrograms:
    """The first processes of the programs of a pod. May be used from several threads."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._lock = threading.Lock()

    def began(self, name: str, pid: int) -> None:
        """Register a program. name: its rank, or `<role>-<index>`."""
        with self._lock:
            self._pids[name] = pid

    def ended(self, name: str) -> None:
        """Forget a program that has ended."""
        with self._lock:
            self._pids.pop(name, None)

    def pids(self) -> dict[str, int]:
        """The process of each registered program, by name."""
        with self._lock:
            return dict(self._pids)

    def all_run(self) -> bool:
        """Whether no registered program is dead or about to die.

        A program's end becomes known with a delay, and the kernel closes the program's files first. A file that was
        closed before this call returned True was closed by the program itself.
        """
        return all(runs(pid) for pid in self.pids().values())


def runs(pid: int) -> bool:
    """Whether a process exists and has not begun to exit."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[_STATE] not in "ZX" and not int(fields[_FLAGS]) & _PF_EXITING


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


class LeftBehind(NamedTuple):
    """The result of ending the processes that programs have left behind."""

    torn: list[Path]
    """Files that a process had open for writing when it was killed: they may be incomplete."""
    alive: list[int]
    """Processes that do not end."""


def end_descendants(kept: Iterable[Path], patience: float = END_BY_ITSELF_SECONDS) -> LeftBehind:
    """End the processes that the ended programs of this process have left; do nothing where orphans are not adopted.

    Processes in this process's own group are its helpers, and stay. `kept`: the folders in which files are of use
    only when they are complete. `patience`: seconds in which processes may end by themselves.
    """
    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts))
    return _end(_left_behind, kept, patience) if adopts.value else LeftBehind([], [])


def end_adopted(parent: int, belongs: Callable[[int], bool], kept: Iterable[Path]) -> LeftBehind:
    """End the processes that an ended program has left to another process of the pod, which adopts orphans.

    `parent`: the process that adopts orphans, whose helpers stay. `belongs`: whether a child of `parent` is of the
    program.
    """

    def left() -> list[int]:
        helpers, children = _group_of(parent), children_by_parent().get(parent, [])
        mine = (pid for pid in children if pid != os.getpid() and _group_of(pid) != helpers and belongs(pid))
        return [pid for first in mine for pid in with_descendants(first) if runs(pid)]

    return _end(left, kept, END_BY_ITSELF_SECONDS)


def _end(find: Callable[[], list[int]], kept: Iterable[Path], patience: float) -> LeftBehind:
    by_themselves = time.monotonic() + patience
    while find():
        if time.monotonic() >= by_themselves:
            return _kill(find, kept)
        time.sleep(POLL_SECONDS)
    return LeftBehind([], [])


def stop_writers(group: int, kept: Iterable[Path]) -> list[Path]:
    """Stop the processes of a process group, which is about to be killed.

    Return the files below the folders `kept` that one of them has open for writing: they may be incomplete.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGSTOP)
    files = _files_by_place(kept)
    # Look at all processes: a program that was a spare before is no descendant of its rank's wrapper.
    pids = (int(path.name) for path in numbered(Path("/proc")))
    members = [pid for pid in pids if _group_of(pid) == group]
    return [path for pid in members for path in _torn_by(pid, files)]


def _torn_by(pid: int, files: Mapping[int, Mapping[int, Path]]) -> list[Path]:
    torn = _written_by(pid, files)
    for path in torn:
        log.warning("process %d was writing %s when it was killed: the file is not uploaded", pid, path)
    return torn


def _kill(find: Callable[[], list[int]], kept: Iterable[Path]) -> LeftBehind:
    deadline, told = time.monotonic() + KILL_SECONDS, set[int]()
    left, torn = find(), list[Path]()
    while left and time.monotonic() < deadline:
        # Stop all processes before the first one is killed: a process that sees another one end might start a new
        # process, or complete a file.
        for pid in left:
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
        left = find()
    if left:
        log.warning("processes of the program do not end after SIGKILL: %s", ", ".join(map(str, left)))
    return LeftBehind(torn, left)


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
