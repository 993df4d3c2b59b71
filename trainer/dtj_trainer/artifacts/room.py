"""The room for files of other pods at a restore: what the volume has no room for stays in the bucket.

A pod needs its own files and those of rank 0's pod. The files of the other pods come after these, the newest first.
"""

from __future__ import annotations

import errno
import logging
import shutil
from itertools import groupby
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.file_fetch import fetch_files
from dtj_trainer.artifacts.pod_manifest import giver_of
from dtj_trainer.artifacts.small_files import AT_ONCE, SMALL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from dtj_trainer.artifacts.file_fetch import Near
    from dtj_trainer.artifacts.manifest import StoredFile
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_MOST_NAMED = 3


class Room:
    """Brings the files of a snapshot to one pod, and knows which ones its last call left in the bucket."""

    def __init__(
        self, pods: Iterable[str], free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    ) -> None:
        """`pods`: the names under which this pod gives files to snapshots. `free`: the free bytes of a volume."""
        self._needed = {"", *pods}
        self._free = free
        self.left_out: list[StoredFile] = []
        self.text = ""
        """Which files were left in the bucket, and why; empty: none."""

    def bring(self, store: Store, files: Iterable[StoredFile], arriving: Path, near: Near) -> str | None:
        """Bring files as `fetch_files` does, but for those of other pods for which there is no room.

        The largest file that the pod needs has room once more afterwards: the program is about to write its next
        checkpoint.
        """
        self.left_out, self.text = [], ""
        needed: list[StoredFile] = []
        others: list[StoredFile] = []
        for file in files:
            (needed if giver_of(file) in self._needed else others).append(file)
        fault = fetch_files(store, needed, arriving, near)
        if fault or not others:
            return fault
        others.sort(key=lambda file: (-file.mtime_ns, file.path))
        spare = max((file.size for file in needed), default=0)
        fault = self._bring_others(store, others, arriving, near, spare)
        if self.left_out and not fault:
            self._tell(arriving.parent)
        return fault

    def _bring_others(
        self, store: Store, others: list[StoredFile], arriving: Path, near: Near, spare: int
    ) -> str | None:
        if sum(_lacking(file, arriving) for file in others) + spare <= self._free(arriving):
            try:
                return fetch_files(store, others, arriving, near)
            except OSError as error:
                _check_room(error)
        # The pods of a node may share the volume: look at its room again and again.
        for batch in _batches(others):
            fits, room = [], self._free(arriving) - spare
            for file in batch:
                size = _lacking(file, arriving)
                if size <= room:
                    fits.append(file)
                    room -= size
                else:
                    self.left_out.append(file)
            try:
                if fault := fetch_files(store, fits, arriving, near):
                    return fault
            except OSError as error:
                _check_room(error)
                self.left_out += [file for file in fits if _lacking(file, arriving)]
        return None

    def _tell(self, folder: Path) -> None:
        named = ", ".join(ascii(file.path) for file in self.left_out[:_MOST_NAMED])
        more = len(self.left_out) - _MOST_NAMED
        named += f" and {more} more" if more > 0 else ""
        size = sum(file.size for file in self.left_out)
        self.text = f"the volume of {folder} has no room for {size} bytes of other pods: {named}"
        log.warning("%s; the next checkpoints keep them", self.text)


def _check_room(error: OSError) -> None:
    if error.errno not in _NO_ROOM:
        raise error


def _lacking(file: StoredFile, arriving: Path) -> int:
    """Return the bytes that a file still needs; 0 where it has arrived."""
    path = arriving / file.path
    return 0 if path.is_file() and path.stat().st_size == file.size else max(file.size, 1)


def _batches(files: Iterable[StoredFile]) -> Iterator[list[StoredFile]]:
    """Yield large files one by one, and small ones that follow each other together, a few at a time."""
    for small, group in groupby(files, lambda file: file.size < SMALL_BYTES):
        found, most = list(group), 4 * AT_ONCE if small else 1
        for at in range(0, len(found), most):
            yield found[at : at + most]
