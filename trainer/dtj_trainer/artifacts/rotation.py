"""Logs of bounded size on a pod's disk: `rank-0.log` is the current file, `.rank-0.log.00001` a rotated one.

Hidden files are not artifacts of their own. The upload of a log reads all its files in order (see `growing`), and
removes the rotated files that are completely uploaded.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

ROTATE_BYTES = 64 * 1024 * 1024
KEPT_ROTATED = 1
"""The rotated files of a log that stay after their upload, or where nothing is uploaded."""
MOST_ROTATED = 16
"""The limit of one log, 1 GiB, while the bucket takes nothing. Beyond it the oldest file is lost; the disk stays
free."""

_ROTATED = re.compile(r"\.(?P<name>.+)\.(?P<number>\d{5,})", re.DOTALL)


def rotated(log: Path, number: int) -> Path:
    """Return the path of a log's rotated file with that number, from 1 on."""
    return log.with_name(f".{log.name}.{number:05d}")


def rotated_numbers(log: Path) -> list[int]:
    """List the numbers of a log's rotated files, from the oldest."""
    try:
        names = [path.name for path in log.parent.iterdir()]
    except OSError:
        return []
    found = (_ROTATED.fullmatch(name) for name in names)
    return sorted(int(match["number"]) for match in found if match and match["name"] == log.name)


def remove_up_to(log: Path, last: int) -> None:
    """Remove the rotated files of a log whose numbers are `last` or lower."""
    for number in rotated_numbers(log):
        if number <= last:
            with contextlib.suppress(OSError):
                rotated(log, number).unlink()
