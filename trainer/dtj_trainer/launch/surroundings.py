"""What a process inherits besides its environment, so that a process of another parent can get the same."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


@dataclass(frozen=True)
class Surroundings:
    """What a process hands on to its children. mpirun may bind a rank to processors, and ssh may set limits."""

    pid: int = field(compare=False)
    processors: frozenset[int]
    limits: Mapping[int, tuple[int, int]]
    umask: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the surroundings of a process.

        None for a process that has ended, or whose files and limits can't be read: one of another user, or in a user
        namespace.
        """
        try:
            if not _is_shared(pid, "user"):
                return None
            limits = {number: resource.prlimit(pid, number) for number in _LIMITS}
            processors = frozenset(os.sched_getaffinity(pid))
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return None
        umask = next(line.split()[1] for line in status.splitlines() if line.startswith("Umask:"))
        return cls(pid, processors, limits, int(umask, 8))

    def entering(self, folder: Path | None) -> Callable[[], None]:
        """Return a function that gives a new process these surroundings and this working directory.

        The new process must call the function before it opens files. The process with `pid` must still run, because
        the new process joins its mount namespace (`own_root`).
        """
        setns = ctypes.CDLL(None, use_errno=True).setns

        def enter() -> None:
            if not _is_shared(self.pid, "mnt"):
                mounts = os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
                if setns(mounts, 0) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
                os.close(mounts)
            if folder is not None:
                os.chdir(folder)
            os.sched_setaffinity(0, self.processors)
            for number, limits in self.limits.items():
                if resource.getrlimit(number) != limits:
                    resource.setrlimit(number, limits)
            os.umask(self.umask)

        return enter


def _is_shared(pid: int, kind: str) -> bool:
    """Whether a process is in the same namespace of a kind as this one."""
    return os.stat(f"/proc/{pid}/ns/{kind}").st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino  # noqa: PTH116 - /proc
