"""What the last lines of a program say about why it failed, in the words of Python and of libraries."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

_LINES_AFTER_CAUSE = 5
"""Libraries may have their say at a program's exit too."""
_NO_SPACE = re.compile(
    "|".join(
        (
            # What every program says that could not write, in its own words or in those of an exception.
            *(re.escape(os.strerror(number)) for number in (errno.ENOSPC, errno.EDQUOT)),
            # Of torch.save: its writer finds fewer bytes in the file than it has written.
            r"unexpected pos \d+ vs \d+",
            r"PytorchStreamWriter failed writing",
            # Of ndarray.tofile, and so of numpy.save.
            r"OSError: \d+ requested and \d+ written",
            # Of SQLite.
            r"database or disk is full",
        )
    )
)
_NO_MODULE = re.compile(r"(?:ModuleNotFoundError|\S*python[\d.]*): (No module named \S+.*)")
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)\b")


def closing(lines: Sequence[str]) -> list[str]:
    """The lines in which the cause may stand, the last one first."""
    return [line.strip() for line in reversed(lines[-_LINES_AFTER_CAUSE:])]


def tells_full_disk(line: str) -> bool:
    """Whether a program says in this line that it could not write, as on a disk without space."""
    return _NO_SPACE.search(line) is not None


def missing_module(lines: Sequence[str]) -> str | None:
    """`No module named 'x'`, where the last traceback ends with that, or Python did not find the program itself."""
    for line in closing(lines):
        if found := _NO_MODULE.fullmatch(line):
            return found[1]
        if _EXCEPTION.match(line):
            return None
    return None
