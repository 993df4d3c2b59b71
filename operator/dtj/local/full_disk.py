"""Notice that a disk of a run is full."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

LEAST_BYTES = 1 << 20
"""A disk with less free space is full."""
PATIENCE_SECONDS = 10.0
"""Seconds for which a disk may be full. A program may remove files, for example an incomplete checkpoint."""


class DiskWatch:
    """Watches the free space for the files in a folder."""

    def __init__(
        self, folder: Path, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """tell: called with a sentence for the user when the disk becomes full."""
        self.folder = folder
        self._tell = tell
        self._clock = clock
        self._full_since: float | None = None

    def full_seconds(self) -> float | None:
        """Return for how long the disk has been full; None if it has space. Call it often."""
        free = free_bytes(self.folder)
        if free >= LEAST_BYTES:
            self._full_since = None
            return None
        if self._full_since is None:
            self._full_since = self._clock()
            self._tell(
                f"the disk of {self.folder} is full, {free} bytes are free: the run ends unless there is space "
                f"within {PATIENCE_SECONDS:.0f} s"
            )
        return self._clock() - self._full_since


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user can still write to the disk of a folder."""
    disk = os.statvfs(folder)
    # File systems keep some space for root.
    return disk.f_frsize * (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail)
