"""Logs that an earlier start in the same workspace has left, for example on a claim."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from dtj_trainer import contract

if TYPE_CHECKING:
    from pathlib import Path

EARLIER = ".earlier"
"""The hidden folder, beside the logs, that has those of the start before. What is hidden is not uploaded."""


def set_aside_earlier(root: Path) -> None:
    """Move the logs and the utilisation of an earlier start aside: they are not lines of this one.

    The bucket has them already, below the attempt that wrote them. The disk keeps those of one start.
    """
    for folder in (root / contract.LOGS, root / contract.UTILISATION):
        # There is no such folder, or the disk is full: then logs go on where the earlier ones end.
        with suppress(OSError):
            entries = [path for path in folder.iterdir() if path.name != EARLIER]
            if entries:
                shutil.rmtree(folder / EARLIER, ignore_errors=True)
                (folder / EARLIER).mkdir()
            for path in entries:
                path.rename(folder / EARLIER / path.name)
