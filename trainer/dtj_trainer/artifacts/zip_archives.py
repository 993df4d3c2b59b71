"""Tells a whole zip archive (`torch.save`, `numpy.savez`, Keras) from a torn one: the directory comes last."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_ZIP_START = b"PK\x03\x04"


def is_whole(path: Path) -> bool | None:
    """Return whether a zip archive has its directory; None for a file that is no archive."""
    try:
        with path.open("rb") as content:
            if content.read(len(_ZIP_START)) != _ZIP_START:
                return None
            return zipfile.is_zipfile(content)
    except OSError:
        return None
    except zipfile.BadZipFile:  # It is no archive of one file.
        return None
