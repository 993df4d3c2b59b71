"""Opens files that the pods of several users share."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def open_shared(path: Path, flags: int, folder: Path) -> int:
    """Return a descriptor of a file, which is created if needed, for all users that may write to `folder`.

    Raises OSError.
    """
    try:
        # In a sticky folder Linux refuses O_CREAT for another user's file (fs.protected_regular).
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        with suppress(PermissionError):  # Another user has just created the file.
            os.fchmod(descriptor, stat.S_IMODE(folder.stat().st_mode) & 0o666)
        return descriptor
