"""A program's output in whole lines: written to a file, passed on, and its last lines remembered.

All lines that one read of the program's pipe completes are passed on together, so that short lines cost no system
call each. Each line ends with its line feed.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from dtj_trainer.artifacts.segments import MOST_ROTATED, ROTATE_BYTES, remove_up_to, rotated, rotated_numbers
from dtj_trainer.launch.termination import LAST_LOG_LINES

LONGEST_LINE_BYTES = 16 * 1024
"""A longer line is passed on in pieces."""
PROGRESS_BAR_SECONDS = 10.0
"""Seconds between two recorded states of a progress bar."""
_READ_BYTES = 64 * 1024


def lines_of(descriptor: int) -> Iterator[bytes]:
    """Yield the lines from a pipe, as many at once as one read completes; see `Lines`."""
    lines = Lines()
    while True:
        try:
            block = os.read(descriptor, _READ_BYTES)
        except OSError:  # The other end of a pseudo-terminal was closed.
            block = b""
        if not block:
            break
        if complete := lines.take(block):
            yield complete
    if last := lines.end():
        yield last


class Lines:
    """Divides output into lines.

    A carriage return moves a terminal's cursor to the start of the line, where a progress bar overwrites its state,
    perhaps ten times a second. Of such a line, only the last state is passed on, and while the progress bar lasts,
    the current state every PROGRESS_BAR_SECONDS.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pending = b""
        self._shown_at = -math.inf

    def take(self, block: bytes) -> bytes:
        """Return the lines that end in this block."""
        text = self._pending + block
        whole, rest = self._states(text) if b"\r" in text else _divided(text)
        pieces = [whole]
        while len(rest) > LONGEST_LINE_BYTES:
            pieces += rest[:LONGEST_LINE_BYTES], b"\n"
            rest = rest[LONGEST_LINE_BYTES:]
        self._pending = rest
        return b"".join(pieces)

    def end(self) -> bytes:
        """Return the last line if it has no line feed."""
        line, self._pending = _last_state(self._pending.split(b"\r")), b""
        return line + b"\n" if line else b""

    def _states(self, text: bytes) -> tuple[bytes, bytes]:
        """Divide text with progress bars into the lines to pass on and the unfinished line."""
        *whole, rest = text.replace(b"\r\n", b"\n").split(b"\n")
        lines = [_last_state(line.split(b"\r")) for line in whole]
        *states, newest = rest.split(b"\r")
        if states and not newest:  # Keep the carriage return: the next block may begin with its line feed.
            newest = states.pop() + b"\r"
        if (state := _last_state(states)) and self._clock() - self._shown_at >= PROGRESS_BAR_SECONDS:
            self._shown_at = self._clock()
            lines.append(state)
        return b"".join(line + b"\n" for line in lines), newest


def _divided(text: bytes) -> tuple[bytes, bytes]:
    """Divide text into its lines and the unfinished line."""
    end = text.rfind(b"\n") + 1
    return text[:end], text[end:]


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

    def write(self, lines: bytes) -> None:
        """Append lines. They stay together in one file."""
        with suppress(OSError, ValueError):  # ValueError: the file was closed meanwhile.
            if self._file is None or self._size + len(lines) > ROTATE_BYTES:
                self._rotate()
            if self._file is not None:
                self._size += self._file.write(lines) or 0

    def close(self) -> None:
        """Close the file. A process that outlived its program may still write lines: they open the file again."""
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None

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
        self._lines: deque[bytes] = deque(maxlen=count)

    def add(self, lines: bytes) -> None:
        """Add lines."""
        self._lines.extend(line for line in lines.split(b"\n") if line.strip())

    def lines(self) -> list[str]:
        """Return the lines, from the oldest."""
        return [line.decode(errors="replace") for line in self._lines]


def writer_to(descriptor: int, prefix: bytes = b"") -> Callable[[bytes], None]:
    """Return a function that writes lines to a descriptor, with the prefix before each line.

    Other processes may write to the same pipe, such as the ranks of one launcher. Each write has whole lines, and the
    kernel keeps a write of up to PIPE_BUF bytes in one piece. mpirun gives a rank a terminal, of which it reads any
    number of bytes before it reads another rank's: there each line is written alone. A closed reader is not an error.
    """
    limit = 0 if os.isatty(descriptor) else select.PIPE_BUF

    def write(lines: bytes) -> None:
        if prefix:
            lines = prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"
        with suppress(OSError):
            for piece in _pieces(lines, limit):
                left = piece
                while left:
                    left = left[os.write(descriptor, left) :]

    return write


def _pieces(lines: bytes, limit: int) -> Iterator[bytes]:
    """Divide lines into pieces of whole lines. Only a line that is longer than `limit` makes a longer piece."""
    begin = 0
    while begin < len(lines):
        end = lines.rfind(b"\n", begin, begin + limit) + 1 or lines.index(b"\n", begin) + 1
        yield lines[begin:end]
        begin = end
