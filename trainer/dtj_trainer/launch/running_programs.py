"""The programs that run in a pod, and whether the kernel has begun to end one of them."""

from __future__ import annotations

import threading
from pathlib import Path

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
