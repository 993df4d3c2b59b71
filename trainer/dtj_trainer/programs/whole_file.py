"""Files that are there whole or not at all, whatever ends the process that writes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write_whole(path: Path, write_to: Callable[[Path], object]) -> None:
    """Have `write_to` write another file beside `path`, and give it that name once it is on disk."""
    # The suffix says what it is to those who upload this folder, and torch.export and Keras look at it too.
    written = path.with_name(f".{path.stem}.tmp{path.suffix}")
    write_to(written)
    descriptor = os.open(written, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    written.replace(path)
