"""Copies the files of an uploaded checkpoint into the node's cache, so that a restart on the node finds them there.

The copy is made after the upload, by a thread of low priority at a limited speed. Neither the upload nor the program
waits for it. An error costs the copy, and nothing else.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer.artifacts.background_priority import run_in_background
from dtj_trainer.artifacts.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dtj_trainer.artifacts.checkpoint_cache import CheckpointCache
    from dtj_trainer.artifacts.local_checkpoints import FileState
    from dtj_trainer.artifacts.manifest import StoredFile

log = logging.getLogger(__name__)

BYTES_PER_SECOND = 200e6
"""The speed beside a program."""
_PIECE_BYTES = 2**23
_OTHER_WAY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
"""Errors of copy_file_range where file systems or sandboxes do not have it."""


class _Changed(Exception):
    """The program has changed or removed the file since its upload."""


class Uploaded(NamedTuple):
    """A file that was uploaded: what is stored, and the state of the local file then."""

    state: FileState
    file: StoredFile


class CacheFill:
    """Fills the cache from a checkpoints folder with the newest uploaded checkpoint. Thread-safe."""

    def __init__(self, cache: CheckpointCache, folder: Path) -> None:
        self._cache = cache
        self._folder = folder
        self._pace = Pace(beside_program=True, bytes_per_second=BYTES_PER_SECOND)
        self._changed = threading.Condition()
        self._waiting: Sequence[Uploaded] | None = None
        self._busy = False
        self._started = False
        self._newest = -1
        self._filled: set[StoredFile] = set()
        """What this process has put into the cache. The next checkpoint takes its place."""

    def offer(self, step: int, files: Sequence[Uploaded]) -> None:
        """Let a checkpoint, or a part of one, be copied, unless a later one was offered. Returns at once."""
        with self._changed:
            if step < self._newest or not self._cache.takes(sum(file.size for _, file in files)):
                return
            self._newest, self._waiting = step, files
            if not self._started:
                self._started = True
                threading.Thread(target=self._work, name="cache fill", daemon=True).start()
            self._changed.notify_all()

    def finish(self, seconds: float) -> None:
        """Hurry, and wait at most so many seconds for what was offered: the process ends."""
        self._pace.hurry()
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None and not self._busy, max(seconds, 0))

    def _work(self) -> None:
        run_in_background()
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting is not None)
                files, self._waiting, self._busy = self._waiting or (), None, True
            try:
                self._copy(files)
            except OSError as error:
                log.debug("an uploaded checkpoint is not in the cache: %s", error)

    def _copy(self, files: Sequence[Uploaded]) -> None:
        now = {file for _, file in files}
        for state, file in files:
            if self._waiting is not None:
                return  # A later checkpoint is of more use.
            with suppress(FileNotFoundError, _Changed), (self._folder / state.path).open("rb") as source:
                if self._cache.add(file, partial(self._copy_file, source.fileno(), state)):
                    self._filled.add(file)
        for old in self._filled - now:
            self._cache.remove(old)
        self._filled &= now

    def _copy_file(self, source: int, state: FileState, target: Path) -> None:
        with target.open("wb", buffering=0) as copy:
            while left := state.size - os.lseek(copy.fileno(), 0, os.SEEK_CUR):
                self._pace.take(amount := min(_PIECE_BYTES, left))
                if not _copy_piece(source, copy.fileno(), amount):
                    break
        now = os.fstat(source)
        if (now.st_size, now.st_ctime_ns, now.st_ino) != (state.size, state.changed_ns, state.inode):
            raise _Changed


def _copy_piece(source: int, target: int, amount: int) -> int:
    """Copy bytes within the kernel, from and to the positions of the two files; return how many."""
    try:
        return os.copy_file_range(source, target, amount)
    except OSError as error:
        if error.errno not in _OTHER_WAY:
            raise
    return os.sendfile(target, source, None, amount)
