"""Lists the files that processes hold open for writing, from /proc. Standard library only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def held_open(device: int) -> set[int]:
    """Return the inodes of all files on a device that a process of this container has open for writing.

    Processes of other users are left out where this process may not read their descriptors.
    """
    processes = (process for process in _listed("/proc") if process.isdecimal())
    return {inode for process in processes for inode in written_by(process, device)}


def written_by(process: str, device: int) -> Iterator[int]:
    """Yield the inodes of the files on a device that a process has open for writing."""
    for number in _listed(f"/proc/{process}/fd"):
        with contextlib.suppress(OSError):
            status = os.stat(f"/proc/{process}/fd/{number}")  # noqa: PTH116 - for thousands, Path.stat is slow
            if status.st_dev == device and _writes(process, number):
                yield status.st_ino


def _writes(process: str, number: str) -> bool:
    with Path(f"/proc/{process}/fdinfo/{number}").open() as lines:
        flags = next(line for line in lines if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _listed(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from os.listdir(folder)  # noqa: PTH208 - a Path for each of thousands is slow
