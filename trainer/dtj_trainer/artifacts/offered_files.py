"""Files of the restored checkpoint that other pods may read, also while they arrive.

A file is known by its SHA-256, which only readers of the manifest in the bucket know. No name comes from outside.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.arriving_file import arrived_of, part_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dtj_trainer.artifacts.manifest import Manifest

LEAST_BYTES = 8 * 2**20
"""Smaller files are not worth a question to another pod: every pod reads them from the bucket."""
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class OpenedFile:
    """A file of `size` bytes that is open for reading. `counter`: the descriptor whose file counts arrived bytes."""

    size: int
    descriptor: int
    counter: int | None

    def wait_beyond(self, at: int, seconds: float) -> int:
        """Return how many bytes have arrived, as soon as they are more than `at`.

        Returns `at` or less where none came for so many seconds, or none will come: the fetch has failed.
        """
        deadline = time.monotonic() + seconds
        while True:
            arrived = self._arrived()
            if arrived is None or arrived > at or time.monotonic() > deadline:
                return arrived or 0
            time.sleep(_POLL_SECONDS)

    def _arrived(self) -> int | None:
        if self.counter is None:
            return self.size
        status = os.fstat(self.counter)
        return status.st_size if status.st_nlink or status.st_size == self.size else None


class OfferedFiles:
    """The large files of the checkpoint that this pod restores. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, tuple[int, list[Path]]] = {}

    def offer(self, manifest: Manifest, *folders: Path) -> None:
        """Offer files of a checkpoint, in place of an earlier one, as soon as one is in one of the folders."""
        files = {
            file.sha256: (file.size, [folder / file.path for folder in folders])
            for file in manifest.files
            if file.size >= LEAST_BYTES
        }
        with self._lock:
            self._files = files

    @contextmanager
    def opened(self, sha256: str) -> Iterator[OpenedFile | None]:
        """Open a file; None if this pod does not have it, and does not fetch it either."""
        with self._lock:
            size, paths = self._files.get(sha256, (0, []))
        descriptors: list[int] = []
        try:
            yield _opened(size, paths, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _opened(size: int, paths: list[Path], descriptors: list[int]) -> OpenedFile | None:
    for path in paths:
        # First what is complete, then what arrives, then again: it may have become complete meanwhile.
        for source, count in ((path, None), (part_of(path), arrived_of(path)), (path, None)):
            with suppress(OSError):
                counter = _open(count, descriptors) if count else None
                descriptor = _open(source, descriptors)
                if counter is None and os.fstat(descriptor).st_size == size:
                    return OpenedFile(size, descriptor, None)
                if counter is not None and os.fstat(counter).st_nlink:  # Both are of the same try.
                    return OpenedFile(size, descriptor, counter)
    return None


def _open(path: Path, descriptors: list[int]) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    descriptors.append(descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(f"{path} is no file")
    return descriptor
