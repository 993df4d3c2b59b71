"""The bytes that the processes of all pods have written into a folder, counted together without locks."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_UNIT = 4096
"""Each byte of the counter's file stands for so many written bytes."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


class WrittenBytes:
    """The length of a file to which each process appends. Every method raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, amount: int) -> int:
        """Count written bytes. Return the bytes of all processes since the last `reset`, rounded up."""
        file = self._opened()
        try:
            os.write(file, bytes(-(-amount // _UNIT)))
            return os.fstat(file).st_size * _UNIT
        finally:
            os.close(file)

    def reset(self) -> None:
        """Begin to count anew."""
        with suppress(FileNotFoundError):
            os.truncate(self._path, 0)

    def _opened(self) -> int:
        try:
            # In a sticky folder Linux refuses O_CREAT for another user's file (fs.protected_regular).
            return os.open(self._path, _APPEND)
        except FileNotFoundError:
            file = os.open(self._path, _APPEND | os.O_CREAT, 0o666)
            with suppress(PermissionError):  # Another user has just created the file.
                os.fchmod(file, stat.S_IMODE(self._path.parent.stat().st_mode) & 0o666)
            return file
