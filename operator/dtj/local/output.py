"""Follow the output of the replicas of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from dtj.local.output_file import text_from
from dtj.local.runs import Run

_LOOK_SECONDS = 0.2
_LONGEST_PIECE = 64 * 1024
_MOST_PIECES = 128
"""So many pieces of each replica are read between two pauses: 40 MB a second."""


class _Tail:
    """A reader of the complete lines that a program appends to a file."""

    def __init__(self, begin: int) -> None:
        self._at = begin
        self._part = b""
        self.behind = False
        """Whether the file had more at the last look."""

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
                await asyncio.sleep(0)  # The run goes on meanwhile.
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        while look():
            pass
        for replica, tail in tails.items():
            for line in tail.rest():
                on_line(replica, line)
