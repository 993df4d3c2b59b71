"""Recognizes the cause of a failure in the last lines of a program's output."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

_LINES_AFTER_CAUSE = 5
"""The cause may be followed by lines that libraries print at a program's exit."""
_NO_SPACE = re.compile(
    "|".join(
        (
            # The operating system's message, which most programs print in their own error or in an exception.
            *(re.escape(os.strerror(number)) for number in (errno.ENOSPC, errno.EDQUOT)),
            # torch.save: its writer finds fewer bytes in the file than it has written.
            r"unexpected pos \d+ vs \d+",
            r"PytorchStreamWriter failed writing",
            # ndarray.tofile, and therefore numpy.save.
            r"OSError: \d+ requested and \d+ written",
            # SQLite.
            r"database or disk is full",
        )
    )
)
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: *")
_NO_MODULE = re.compile(r"(?:ModuleNotFoundError|\S*python[\d.]*): (No module named \S+.*)")
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)\b")


def closing(lines: Sequence[str]) -> list[str]:
    """Return the lines that may contain the cause, from the last one, without PyTorch's prefix of a rank."""
    return [_RANK_PREFIX.sub("", line.strip()) for line in reversed(lines[-_LINES_AFTER_CAUSE:])]


def reports_full_disk(line: str) -> bool:
    """Return whether this line reports a failed write, as on a full disk."""
    return _NO_SPACE.search(line) is not None


def missing_module(lines: Sequence[str]) -> str | None:
    """Return `No module named 'x'` if the last traceback ends so, or if Python did not find the program itself."""
    for line in closing(lines):
        if found := _NO_MODULE.fullmatch(line):
            return found[1]
        if _EXCEPTION.match(line):
            return None
    return None
