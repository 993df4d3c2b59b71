"""One version of a file on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class FileVersion(NamedTuple):
    """A path with properties that change with the file's content: size in bytes, change time in nanoseconds,
    inode.
    """

    path: Path
    size: int
    changed_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileVersion:
        """Read the file's current version. Raises OSError."""
        status = path.stat()
        return cls(path, status.st_size, status.st_ctime_ns, status.st_ino)

    @property
    def is_current(self) -> bool:
        """Whether the file is still the same."""
        try:
            return FileVersion.of(self.path) == self
        except OSError:
            return False
