"""A program's output, line by line: kept in a file, passed on, its last lines remembered."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from dtj_trainer.launch.termination import LAST_LOG_LINES

LONGEST_LINE_BYTES = 16 * 1024
"""A longer line is passed on in pieces."""
_READ_BYTES = 64 * 1024


def lines_of(descriptor: int) -> Iterator[bytes]:
    """Lines read from a pipe, without their ends; a carriage return (a progress bar's) ends one too."""
    pending = b""
    while True:
        try:
            block = os.read(descriptor, _READ_BYTES)
        except OSError:  # A pseudo-terminal's other end was closed.
            block = b""
        if not block:
            break
        pending += block
        *whole, pending = pending.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        yield from whole
        while len(pending) > LONGEST_LINE_BYTES:
            yield pending[:LONGEST_LINE_BYTES]
            pending = pending[LONGEST_LINE_BYTES:]
    if pending:
        yield pending


class LogFile:
    """Appends lines to a log; a disk that is full must not stop the program it logs."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO | None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError:
            self._file = None

    def write(self, line: bytes) -> None:
        """Append one line."""
        if self._file is not None:
            try:
                self._file.write(line + b"\n")
            except OSError:
                return


class LastLines:
    """Remembers the last few lines that are not empty."""

    def __init__(self, count: int = LAST_LOG_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=count)

    def add(self, line: str) -> None:
        """Take one more line."""
        if line.strip():
            self._lines.append(line)

    def lines(self) -> list[str]:
        """The lines, the oldest first."""
        return list(self._lines)


def writer_to(descriptor: int, prefix: bytes = b"") -> Callable[[bytes], None]:
    """A function that writes lines to a descriptor, each in one piece; one that nobody reads is no error."""

    def write(line: bytes) -> None:
        left = prefix + line + b"\n"
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError:
            return

    return write
