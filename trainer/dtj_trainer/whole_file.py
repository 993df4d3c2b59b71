"""Writes files atomically: after an interruption, a file is complete or missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write_whole(path: Path, write_to: Callable[[Path], object]) -> None:
    """Let `write_to` write a temporary file beside `path`, and rename it to `path` once it is on disk."""
    # Uploaders skip the temporary name. The suffix stays, because torch.export and Keras check it.
    written = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        write_to(written)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    descriptor = os.open(written, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    written.replace(path)
