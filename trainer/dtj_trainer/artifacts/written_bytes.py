"""The bytes that the processes of all pods have written into a folder, counted together without locks."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.shared_file import open_shared

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
        file = open_shared(self._path, _APPEND, self._path.parent)
        try:
            os.write(file, bytes(-(-amount // _UNIT)))
            return os.fstat(file).st_size * _UNIT
        finally:
            os.close(file)

    def reset(self) -> None:
        """Begin to count anew."""
        with suppress(FileNotFoundError):
            os.truncate(self._path, 0)
