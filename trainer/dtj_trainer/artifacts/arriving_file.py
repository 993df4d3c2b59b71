"""A file that is received from its first byte to its last, and that the job's other pods may read meanwhile.

The bytes go to `<name>.part`. A second file, `.<name>.arrived.part`, has a size and no content: the size is the
number of bytes that have arrived without a gap. Any process of the pod can see the size, and needs no message.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

_MOST_NAME_BYTES = 255
_HASHED_BYTES = 2**22
"""The number of bytes that one call hashes. The call releases Python's global interpreter lock."""


def part_of(path: Path) -> Path:
    """Return the file that has the bytes of a file that arrives at `path`."""
    return beside(path, "", ".part")


def arrived_of(path: Path) -> Path:
    """Return the file whose size is the number of bytes that have arrived without a gap."""
    return beside(path, ".", ".arrived.part")


def beside(path: Path, prefix: str, suffix: str) -> Path:
    """Return the path of a temporary file beside `path`. A hash takes the place of a name that would be too long."""
    name = f"{prefix}{path.name}{suffix}"
    if len(os.fsencode(name)) <= _MOST_NAME_BYTES:
        return path.with_name(name)
    return path.with_name(f"{prefix}{hashlib.sha256(os.fsencode(path.name)).hexdigest()}{suffix}")


class ArrivingFile:
    """Writes one file, and computes its SHA-256 meanwhile. The context manager removes the temporary files."""

    file: FileIO

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """`shared`: whether other processes can see, by the size file, how many bytes have arrived."""
        self._path = path
        self._shared = shared
        self._digest = hashlib.sha256()
        self._read: memoryview | None = None
        self.at = 0
        """The number of bytes that have arrived without a gap, and are hashed."""

    def __enter__(self) -> Self:
        self._clear()
        self.file = part_of(self._path).open("xb+", buffering=0)
        if self._shared:
            self._arrived = arrived_of(self._path).open("xb", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if self._shared:
            self._arrived.close()
        self._clear()

    def hash_to(self, end: int) -> None:
        """Hash the bytes of the file up to `end`. The page cache still has these bytes: no disk is read."""
        if self._read is None:
            self._read = memoryview(bytearray(_HASHED_BYTES))
        self.file.seek(self.at)
        while self.at < end:
            read = self.file.readinto(self._read[: end - self.at])
            if not read:
                raise OSError(f"{self.file.name!s} ends after {self.at} bytes instead of {end}")
            self._add(self._read[:read])

    def append(self, block: bytes) -> None:
        """Write and hash the bytes that follow those that have arrived. Raises OSError."""
        self.file.seek(self.at)
        left = memoryview(block)
        while left:
            left = left[self.file.write(left) :]
        self._add(block)

    def _add(self, block: memoryview | bytes) -> None:
        self._digest.update(block)
        self.at += len(block)
        if self._shared:
            os.ftruncate(self._arrived.fileno(), self.at)

    @property
    def sha256(self) -> str:
        """The SHA-256 of what has arrived, in hexadecimal digits."""
        return self._digest.hexdigest()

    def put(self) -> None:
        """Rename the temporary file to its final path."""
        part_of(self._path).replace(self._path)

    def _clear(self) -> None:
        # Remove the size file first: while a reader finds the size file, the part file that the reader opened is of
        # the same download.
        arrived_of(self._path).unlink(missing_ok=True)
        part_of(self._path).unlink(missing_ok=True)
