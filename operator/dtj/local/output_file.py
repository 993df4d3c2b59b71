"""The output file of a replica, whose space on the disk is limited.

The processes of the replica hold the file open and append to it, also after dtj was killed. A renamed file would
therefore stay their output. dtj releases the space of the oldest lines instead: the file then begins with a hole.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from dtj_trainer.artifacts.rotation import KEPT_ROTATED, ROTATE_BYTES

MOST_BYTES = (1 + KEPT_ROTATED) * ROTATE_BYTES
"""The limit of a file, as that of the logs of a pod whose uploads are complete."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_SKIP_BYTES = 64 * 1024
"""A longer line that the hole has cut is not skipped."""


def limit_space(file: Path) -> None:
    """Release the space of the oldest lines of a large file. A file system without holes keeps all lines."""
    with suppress(OSError):
        disk = file.stat()
        if disk.st_blocks * 512 > MOST_BYTES:
            end = disk.st_size - (MOST_BYTES - ROTATE_BYTES)
            with file.open("r+b") as opened:
                # The kernel would overwrite a part of a block with zeros.
                _punch(opened.fileno(), end - end % disk.st_blksize)


def text_from(opened: BinaryIO, at: int) -> int:
    """Return `at`, or the begin of the first whole line behind the hole if `at` is in the hole."""
    try:
        text = os.lseek(opened.fileno(), at, os.SEEK_DATA)
    except OSError:  # nothing is behind `at`
        return at
    if text == at:
        return at
    opened.seek(text)
    return text + opened.read(_SKIP_BYTES).find(b"\n") + 1


def _punch(descriptor: int, end: int) -> None:
    fallocate = ctypes.CDLL(None).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, 0, end)
