"""A cache of blocks in a folder, which the processes of a pod, and the pods of a node, share without locks.

A block is one file, named by a digest of the block's identity: URI, object, version of the object, offset, length,
CRC-32. A writer renames the complete file into place, so that two writers of a block do no harm. A reader compares a
block's length and CRC-32, so that a damaged file is a miss. The files that were used least recently are removed when
the files exceed the limit; a reader that has opened such a file reads it to its end. The processes count together
what they have written since the last removal, so that the limit holds for any number of processes.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import stat
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer.data.written_bytes import WrittenBytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtj_trainer.data.ranged import Range

log = logging.getLogger(__name__)

_FILL = 0.9
"""The part of the limit that an eviction leaves. The rest is for what processes write until the next eviction."""
_SHARE_BETWEEN_EVICTIONS = 1 / 64
"""When the processes have written this part of the limit together, one of them looks at the folder again."""
_PART_OF_DISK = 0.95
"""A cache uses at most this part of its file system, whatever its limit."""
_WRITTEN_FILE = "written"
_USED_SECONDS = 60.0
"""A file's time of use is set again at most this often."""
_ABANDONED_SECONDS = 600.0
"""An unfinished file that is older belongs to a process that has died."""
_UNFINISHED = ".writing"


class BlockCache:
    """At most `limit` bytes of blocks below `folder`, which is created if needed. Threads may share a cache.

    Folders get the mode of `folder`, so that pods of several users may share a cache. An error of the file system,
    such as a full disk, is logged once; the cache then misses. A cache whose files can't be removed keeps no more
    blocks.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._written = WrittenBytes(folder / _WRITTEN_FILE)
        self._looked = False
        self._full = False
        self._lock = threading.Lock()
        self._names = itertools.count()
        self._failed = False
        self.hits = 0
        self.misses = 0

    def get(self, uri: str, range_: Range, crc32: int) -> bytes | None:
        """Return a block's bytes; None when the cache does not have the block, or not with this CRC-32."""
        path = self._path(uri, range_, crc32)
        try:
            with path.open("rb", buffering=0) as file:
                content = file.read(range_.length + 1)
                if time.time() - os.fstat(file.fileno()).st_mtime > _USED_SECONDS:
                    with suppress(OSError):  # A read-only volume, or the file of another user.
                        os.utime(path)
        except FileNotFoundError:
            content = b""
        except OSError as error:
            self._report(error)
            content = b""
        if len(content) == range_.length and zlib.crc32(content) == crc32:
            self.hits += 1
            return content
        self.misses += 1
        if content:
            log.warning("%s: the cached block is damaged, and is fetched again", path)
            with suppress(OSError):
                path.unlink(missing_ok=True)
        return None

    def put(self, uri: str, range_: Range, crc32: int, content: bytes) -> None:
        """Keep a block's bytes, whose CRC-32 the caller has compared. Another process may keep the same block."""
        if self._full:
            return
        path = self._path(uri, range_, crc32)
        unfinished = path.with_name(
            f"{path.name}.{os.uname().nodename}-{os.getpid()}-{next(self._names)}{_UNFINISHED}"
        )
        try:
            self._make(path.parent)
            self._make_room(len(content))
            try:
                unfinished.write_bytes(content)
                unfinished.rename(path)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
        except OSError as error:
            self._report(error)

    def _path(self, uri: str, range_: Range, crc32: int) -> Path:
        identity = "\0".join(map(str, (uri.rstrip("/"), *range_, crc32)))
        name = hashlib.sha256(identity.encode()).hexdigest()
        return self._folder / name[:2] / name[2:34]

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(stat.S_IMODE(self._folder.stat().st_mode))

    def _make_room(self, amount: int) -> None:
        written = self._written.add(amount)
        with self._lock:
            if not self._looked:  # The first write looks at what earlier jobs left.
                self._looked, written = True, self._limit
                self._limit = min(self._limit, int(_bytes_of_disk(self._folder) * _PART_OF_DISK))
            if written <= self._limit * _SHARE_BETWEEN_EVICTIONS:
                return
        self._written.reset()
        self._evict(int(self._limit * _FILL) - amount)

    def _evict(self, target: int) -> None:
        """Remove the files that were used least recently until the files have at most `target` bytes.

        Raises OSError if too many files can't be removed.
        """
        now = time.time()
        files = []
        for path, status in self._files():
            abandoned = path.name.endswith(_UNFINISHED) and now - status.st_mtime > _ABANDONED_SECONDS
            files.append((0.0 if abandoned else status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        failed: OSError | None = None
        for used, size, path in sorted(files):
            if used and total <= target:
                break
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # For example the file of another user in a folder with the sticky bit.
                failed = error
            else:
                total -= size
        if failed and total > target:
            self._full = True
            raise failed

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for folder in self._folder.glob("[0-9a-f][0-9a-f]"):
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        try:
                            yield Path(entry.path), entry.stat(follow_symlinks=False)
                        except FileNotFoundError:  # Another process has just removed or renamed the file.
                            continue
            except FileNotFoundError:
                continue

    def _report(self, error: OSError) -> None:
        if not self._failed:
            log.warning("the cache of blocks in %s is not used: %s", self._folder, error)
            self._failed = True


def _bytes_of_disk(folder: Path) -> int:
    """Return the size of a folder's file system, without what only root may use."""
    disk = os.statvfs(folder)
    return (disk.f_blocks - disk.f_bfree + disk.f_bavail) * disk.f_frsize
