"""Follow the output of the replicas of a run."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from dtj.local.runs import Run
from dtj_trainer.artifacts.segments import KEPT_ROTATED, ROTATE_BYTES

# The output file of a replica, whose space on the disk is limited.
#
# The processes of the replica hold the file open and append to it, also after dtj was killed. A renamed file would
# therefore stay their output. dtj releases the space of the oldest lines instead: the file then begins with a hole.

MOST_BYTES = (1 + KEPT_ROTATED) * ROTATE_BYTES
"""The limit of an output file in bytes. The logs of a pod on a cluster have the same limit."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_SKIP_BYTES = 64 * 1024
"""The longest rest of a line behind the hole, in bytes, that is skipped. A longer rest is shown as a line."""


def limit_space(file: Path) -> None:
    """Release the space of the oldest lines of a large file. A file system without holes keeps all lines."""
    with suppress(OSError):
        disk = file.stat()
        if disk.st_blocks * 512 > MOST_BYTES:
            end = disk.st_size - (MOST_BYTES - ROTATE_BYTES)
            with file.open("r+b") as opened:
                # Release whole blocks only: the kernel overwrites a part of a block with zeros.
                _punch(opened.fileno(), end - end % disk.st_blksize)


def text_from(opened: BinaryIO, at: int) -> int:
    """Return `at`, or the begin of the first whole line behind the hole if `at` is in the hole."""
    try:
        text = os.lseek(opened.fileno(), at, os.SEEK_DATA)
    except OSError:  # The file has no data after `at`.
        return at
    if text == at:
        return at
    opened.seek(text)
    return text + opened.read(_SKIP_BYTES).find(b"\n") + 1


def _punch(descriptor: int, end: int) -> None:
    fallocate = ctypes.CDLL(None).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, 0, end)


_LOOK_SECONDS = 0.2
_LONGEST_PIECE = 64 * 1024
_MOST_PIECES = 128
"""The number of pieces of a replica's output that are read between two pauses, which allows 40 MB a second."""


class _Tail:
    """A reader of the complete lines that a program appends to a file."""

    def __init__(self, begin: int) -> None:
        self._at = begin
        self._part = b""
        self.behind = False
        """Whether the last read did not reach the end of the file."""

    def lines(self, file: Path) -> list[str]:
        with file.open("rb") as opened:
            if (at := text_from(opened, self._at)) != self._at:
                self._at, self._part = at, b""
            opened.seek(self._at)
            block = opened.read(_LONGEST_PIECE)
        self._at += len(block)
        self.behind = len(block) == _LONGEST_PIECE
        *whole, part = (self._part + block).split(b"\n")
        # A progress bar rewrites one line for hours. Keep only the text after its last carriage return.
        self._part = part[max(part.rfind(b"\r", 0, -1), 0) :]
        if len(self._part) >= _LONGEST_PIECE:
            whole.append(self._part)
            self._part = b""
        return [line.decode(errors="replace") for line in whole]

    def rest(self) -> list[str]:
        """Return the last line if the program printed no newline after it."""
        rest, self._part = self._part, b""
        return [rest.decode(errors="replace")] if rest else []


async def follow_outputs(run: Run, on_line: Callable[[str, str], None]) -> None:
    """Call `on_line` with the replica and each new line, until cancelled. Then report the remaining output."""
    tails = {replica: _Tail(file.stat().st_size) for replica, file in run.outputs.items()}

    def look() -> bool:
        """Return whether there is more to read."""
        for replica, file in run.outputs.items():
            for line in tails.setdefault(replica, _Tail(0)).lines(file):
                on_line(replica, line)
        return any(tail.behind for tail in tails.values())

    try:
        while True:
            for _ in range(_MOST_PIECES):
                if not look():
                    break
                await asyncio.sleep(0)  # Let other tasks of the run continue.
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        while look():
            pass
        for replica, tail in tails.items():
            for line in tail.rest():
                on_line(replica, line)
