"""Logs of bounded size on a pod's disk: `rank-0.log` is what is written now, `.rank-0.log.00001` was before it.

Hidden names are no artifacts: the upload of a log goes on over all its files (see `growing`), and removes those that
are whole in the bucket.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

ROTATE_BYTES = 64 * 1024 * 1024
KEPT_ROTATED = 1
"""So many of a log's former files stay when they are in the bucket, or where nothing is uploaded."""
MOST_ROTATED = 16
"""Of one log, 1 GiB, where the bucket takes nothing. The oldest is lost then, rather than the disk filled."""

_ROTATED = re.compile(r"\.(?P<name>.+)\.(?P<number>\d{5,})", re.DOTALL)


def rotated(log: Path, number: int) -> Path:
    """The n-th former file of a log, from 1 on."""
    return log.with_name(f".{log.name}.{number:05d}")


def rotated_numbers(log: Path) -> list[int]:
    """Which former files of a log there are, the oldest first."""
    try:
        names = [path.name for path in log.parent.iterdir()]
    except OSError:
        return []
    found = (_ROTATED.fullmatch(name) for name in names)
    return sorted(int(match["number"]) for match in found if match and match["name"] == log.name)


def remove_up_to(log: Path, last: int) -> None:
    """Remove the former files of a log whose numbers are `last` or lower."""
    for number in rotated_numbers(log):
        if number <= last:
            with contextlib.suppress(OSError):
                rotated(log, number).unlink()
