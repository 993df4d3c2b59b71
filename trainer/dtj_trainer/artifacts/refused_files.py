"""Files that the bucket refuses or that can't be read: told once, tried seldom, and no reason for a job to fail."""

from __future__ import annotations

import logging
import os
import time
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Set
    from pathlib import Path

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
MOST_FILES = 1000
"""The program may make any number of files: only so many are told and remembered."""
_MOST_NAMED, _MOST_CHARACTERS = 3, 300
_END_OF_NAME = 60
"""Characters of a long file name that are told, so that the reason has room."""


class RefusedFiles:
    """The files that a pod could not upload for a lasting reason. For one thread; others may read `text`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._files: dict[Path, tuple[float, str]] = {}
        self.text = ""
        """The first of the files with the reasons, and the number of the others; empty: none."""

    def add(self, path: Path, why: str) -> None:
        """Note that a file was refused, and tell it in the log if that is new."""
        told = path in self._files
        if not told and len(self._files) >= MOST_FILES:
            return
        self._files[path] = (self._clock(), why)
        if not told:
            log.warning("%s is not uploaded: %s", ascii(os.fspath(path)), why)
            self._describe()

    def accepted(self, path: Path) -> None:
        """Note that a file was uploaded."""
        if self._files.pop(path, None):
            log.info("%s is uploaded now", ascii(os.fspath(path)))
            self._describe()

    def only(self, paths: Set[Path]) -> None:
        """Note that all other files were uploaded, or do not exist any more."""
        for path in self._files.keys() - paths:
            self.accepted(path)

    def waits(self, path: Path) -> bool:
        """Return whether a refused file is not to be tried yet."""
        if (refused := self._files.get(path)) is None:
            return False
        return self._clock() - refused[0] < RETRY_SECONDS

    def _describe(self) -> None:
        first = islice(self._files.items(), _MOST_NAMED)
        named = "; ".join(f"{_short(path.name)!a}: {why}"[:_MOST_CHARACTERS] for path, (_, why) in first)
        more = len(self._files) - _MOST_NAMED
        self.text = named + (f"; and {more} more" if more > 0 else "")


def _short(name: str) -> str:
    return name if len(name) <= _END_OF_NAME else f"...{name[-_END_OF_NAME:]}"
