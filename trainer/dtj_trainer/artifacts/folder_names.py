"""Lists the files below a folder, and reads a folder again only when it has changed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from dtj_trainer.artifacts.store import usable_name

SETTLED_NS = 2 * 10**9
"""A listing is reused only if it began this long after the folder's last change (file system clocks are coarse)."""
LONGEST_NS = 60 * 10**9
"""A listing is reused for at most this time, because some file systems do not update a folder's time."""


@dataclass(frozen=True)
class _Read:
    changed_ns: int
    at_ns: int
    files: tuple[Path, ...]
    folders: tuple[str, ...]

    def holds(self, changed_ns: int, now_ns: int) -> bool:
        settled = self.at_ns - changed_ns > SETTLED_NS
        return changed_ns == self.changed_ns and settled and 0 <= now_ns - self.at_ns < LONGEST_NS


@dataclass
class FolderNames:
    """A cache of folder listings. Not thread-safe."""

    _read: dict[str, _Read] = field(default_factory=dict)

    def files(self, folder: Path) -> list[Path]:
        """List all files below a folder, ordered by name, without hidden and temporary files."""
        found: list[Path] = []
        waiting = [str(folder)]
        while waiting:
            name = waiting.pop()
            try:
                read = self._names(name)
            except OSError:  # The folder does not exist, or was removed meanwhile.
                self._read.pop(name, None)
                continue
            found += read.files
            waiting += read.folders
        return found

    def _names(self, folder: str) -> _Read:
        changed_ns, now_ns = Path(folder).stat().st_mtime_ns, time.time_ns()
        known = self._read.get(folder)
        if known and known.holds(changed_ns, now_ns):
            return known
        files, folders = [], []
        with os.scandir(folder) as entries:
            for entry in entries:
                if not usable_name(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file():
                    files.append(entry.path)
        made = _Read(changed_ns, now_ns, tuple(Path(file) for file in sorted(files)), tuple(sorted(folders)))
        self._read[folder] = made
        return made
