"""A program's output by line: written to a file, passed on, and its last lines remembered."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from dtj_trainer.artifacts.rotation import (
    MOST_ROTATED,
    ROTATE_BYTES,
    remove_up_to,
    rotated,
    rotated_numbers,
)
from dtj_trainer.launch.termination import LAST_LOG_LINES

LONGEST_LINE_BYTES = 16 * 1024
"""A longer line is passed on in pieces."""
PROGRESS_BAR_SECONDS = 10.0
"""Seconds between two recorded states of a progress bar."""
_READ_BYTES = 64 * 1024


def lines_of(descriptor: int) -> Iterator[bytes]:
    """Yield lines from a pipe without line ends, and only some states of a progress bar; see `Lines`."""
    lines = Lines()
    while True:
        try:
            block = os.read(descriptor, _READ_BYTES)
        except OSError:  # The other end of a pseudo-terminal was closed.
            block = b""
        if not block:
            break
        yield from lines.take(block)
    yield from lines.end()


class Lines:
    """Divides output into lines.

    A carriage return moves a terminal's cursor to the start of the line, where a progress bar overwrites its state,
    perhaps ten times a second. The line is its last state. While a progress bar lasts, its current state is passed on
    every PROGRESS_BAR_SECONDS.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pending = b""
        self._shown_at = -math.inf

    def take(self, block: bytes) -> Iterator[bytes]:
        """Yield the lines that end in this block."""
        *whole, rest = (self._pending + block).replace(b"\r\n", b"\n").split(b"\n")
        for line in whole:
            yield _last_state(line.split(b"\r"))
        *states, newest = rest.split(b"\r")
        if states and not newest:  # A line feed may follow.
            newest = states.pop() + b"\r"
        if (state := _last_state(states)) and self._clock() - self._shown_at >= PROGRESS_BAR_SECONDS:
            self._shown_at = self._clock()
            yield state
        while len(newest) > LONGEST_LINE_BYTES:
            yield newest[:LONGEST_LINE_BYTES]
            newest = newest[LONGEST_LINE_BYTES:]
        self._pending = newest

    def end(self) -> Iterator[bytes]:
        """Yield the last line if it has no line feed."""
        if line := _last_state(self._pending.split(b"\r")):
            yield line
        self._pending = b""


def _last_state(states: Sequence[bytes]) -> bytes:
    """Return the last visible state of a line, unless the progress bar has erased itself."""
    return next((state for state in reversed(states) if state.strip()), states[-1] if states else b"")


class LogFile:
    """Appends lines to a rotated log. Errors of a full disk are ignored, so that they don't stop the program.

    `kept`: the number of rotated files to keep. Where logs are uploaded, the uploader removes rotated files earlier.
    """

    def __init__(self, path: Path, *, kept: int = MOST_ROTATED) -> None:
        self._path = path
        self._kept = kept
        self._file: BinaryIO | None = None
        self._size = 0
        self._next = 1
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._next = max(rotated_numbers(path), default=0) + 1
            self._open()

    def write(self, line: bytes) -> None:
        """Append one line."""
        with suppress(OSError):
            if self._file is None or self._size + len(line) >= ROTATE_BYTES:
                self._rotate()
            if self._file is not None:
                self._size += self._file.write(line + b"\n") or 0

    def _open(self) -> None:
        self._file = self._path.open("ab", buffering=0)
        self._size = os.fstat(self._file.fileno()).st_size

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._path.rename(rotated(self._path, self._next))
            self._next += 1
            remove_up_to(self._path, self._next - 1 - self._kept)
        self._open()


class LastLines:
    """Remembers the last few lines that are not empty."""

    def __init__(self, count: int = LAST_LOG_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=count)

    def add(self, line: str) -> None:
        """Add one line."""
        if line.strip():
            self._lines.append(line)

    def lines(self) -> list[str]:
        """Return the lines, from the oldest."""
        return list(self._lines)


def writer_to(descriptor: int, prefix: bytes = b"") -> Callable[[bytes], None]:
    """Return a function that writes each line to a descriptor in one piece. A closed reader is not an error."""

    def write(line: bytes) -> None:
        left = prefix + line + b"\n"
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError:
            return

    return write
