"""A cache of blocks in a folder, which the processes of a pod, and the pods of a node, share without locks.

A block is one file, named by a digest of its identity: URI, object, version of the object, offset, length, CRC-32.
A reader compares length and CRC-32, so that a damaged file is a miss. `stored_examples` reads through it.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import stat
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.data import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dtj_trainer.data.ranged import Range


# A folder of cached files, which the processes of a pod, and the pods of a node, share without a service.
#
# A file is named by a digest of its identity. A writer renames the complete file into place, so that two writers of a
# file do no harm. A reader verifies what it reads. The files that were used least recently are removed when the files
# exceed the limit; a reader that has opened such a file reads it to its end. The processes count together what they
# have written since the last removal, so that the limit holds for any number of processes.

# open_shared opens files that the pods of several users share.


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


# WrittenBytes counts the bytes that the processes of all pods have written into a folder, without locks.

_UNIT = 4096
"""Each byte of the counter's file stands for this many written bytes."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


class WrittenBytes:
    """The length of a file to which each process appends. Every method raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, amount: int) -> int:
        """Count written bytes. Return the bytes of all processes since the last `reset`, rounded up."""
        file = open_shared(self._path, _APPEND, self._path.parent)
        try:
            os.write(file, bytes(-(-amount // _UNIT)))
            return os.fstat(file).st_size * _UNIT
        finally:
            os.close(file)

    def reset(self) -> None:
        """Set the count back to 0."""
        with suppress(FileNotFoundError):
            os.truncate(self._path, 0)


DEFAULT_BYTES = 100 * 10**9
"""The limit of a cache whose user gives no other limit."""
_FILL = 0.9
"""The part of the limit that an eviction leaves. The rest is for what processes write until the next eviction."""
_SHARE_BETWEEN_EVICTIONS = 1 / 64
"""When the processes together have written this part of the limit, one process lists the folder and evicts files."""
_PART_OF_DISK = 0.95
"""A cache uses at most this part of its file system, whatever its limit."""
_WRITTEN_FILE = "written"
_USED_SECONDS = 60.0
"""A file's time of use is set again at most this often."""
_ABANDONED_SECONDS = 600.0
"""An unfinished file that is older belongs to a process that has died."""
_UNFINISHED = ".writing"


class CacheFolder:
    """At most `limit` bytes of files below `path`, which is created if needed. Threads may share the object.

    Folders get the mode of `path`, so that pods of several users may share the cache. A cache whose files can't be
    removed keeps no more files.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.full = False
        """Whether the cache is full because files that should make room can't be removed."""
        self._written = WrittenBytes(path / _WRITTEN_FILE)
        self._looked = False
        self._lock = threading.Lock()
        self._names = itertools.count()

    def file_of(self, *identity: object) -> Path:
        """Return the path of the file of this identity."""
        name = hashlib.sha256("\0".join(map(str, identity)).encode()).hexdigest()
        return self.path / name[:2] / name[2:34]

    @contextmanager
    def writing(self, path: Path, size: int) -> Iterator[Path]:
        """Make room for `size` bytes, give a path to write them to, and put that file in the place of `path`.

        Raises OSError.
        """
        self.make(path.parent)
        self._make_room(size)
        unfinished = path.with_name(
            f"{path.name}.{os.uname().nodename}-{os.getpid()}-{next(self._names)}{_UNFINISHED}"
        )
        try:
            yield unfinished
            unfinished.rename(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def make(self, folder: Path) -> None:
        """Create a folder below `path`, if needed. Raises OSError."""
        if folder.is_dir():
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(stat.S_IMODE(self.path.stat().st_mode))

    def _make_room(self, amount: int) -> None:
        written = self._written.add(amount)
        with self._lock:
            if not self._looked:  # The first write counts what earlier jobs left in the folder.
                self._looked, written = True, self.limit
                self.limit = min(self.limit, int(_bytes_of_disk(self.path) * _PART_OF_DISK))
            if written <= self.limit * _SHARE_BETWEEN_EVICTIONS:
                return
        self._written.reset()
        self._evict(int(self.limit * _FILL) - amount)

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
            self.full = True
            raise failed

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for folder in self.path.glob("[0-9a-f][0-9a-f]"):
            if folder.is_symlink():  # Another pod could point the link at this pod's own files.
                continue
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        try:
                            yield Path(entry.path), entry.stat(follow_symlinks=False)
                        except FileNotFoundError:  # Another process has just removed or renamed the file.
                            continue
            except FileNotFoundError:
                continue


def limit_from_environment(environment: Mapping[str, str]) -> int:
    """Return the bytes that the job's cache may have. Raises ValueError for a variable that is no size."""
    text = environment.get(contract.ENV_DATA_CACHE_BYTES, str(DEFAULT_BYTES))
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{contract.ENV_DATA_CACHE_BYTES} must be a number of bytes, got {text!r}")
    return int(text)


def note_use(path: Path, file: int) -> None:
    """Set the time of use of a cached file, which is open with the descriptor `file`."""
    if time.time() - os.fstat(file).st_mtime > _USED_SECONDS:
        with suppress(OSError):  # A read-only volume, or the file of another user.
            os.utime(path)


def _bytes_of_disk(folder: Path) -> int:
    """Return the size of a folder's file system, without what only root may use."""
    disk = os.statvfs(folder)
    return (disk.f_blocks - disk.f_bfree + disk.f_bavail) * disk.f_frsize


log = logging.getLogger(__name__)


class BlockCache:
    """At most `limit` bytes of blocks below `folder`; see CacheFolder. Threads may share a cache.

    An error of the file system, such as a full disk, is logged once; the cache then misses.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = CacheFolder(folder, limit)
        self._failed = False
        self.hits = 0
        self.misses = 0

    def has(self, uri: str, range_: Range, crc32: int) -> bool:
        """Return whether the cache seems to have a block. A block that it does not have counts as a miss."""
        there = self._path(uri, range_, crc32).exists()
        self.misses += not there
        return there

    def get(self, uri: str, range_: Range, crc32: int) -> bytes | None:
        """Return a block's bytes; None when the cache does not have the block, or not with this CRC-32."""
        path = self._path(uri, range_, crc32)
        try:
            with path.open("rb", buffering=0) as file:
                content = file.read(range_.length + 1)
                note_use(path, file.fileno())
        except FileNotFoundError:
            content = b""
        except OSError as error:
            self._report(error)
            content = b""
        if len(content) == range_.length and checksum.crc32(content) == crc32:
            self.hits += 1
            return content
        self.misses += 1
        if content:
            log.warning("%s: the cached block is damaged, and is fetched again", path)
            with suppress(OSError):
                path.unlink(missing_ok=True)
        return None

    def put(self, uri: str, range_: Range, crc32: int, content: bytes | memoryview) -> None:
        """Keep a block's bytes, whose CRC-32 the caller has compared. Another process may keep the same block."""
        if self._folder.full:
            return
        try:
            with self._folder.writing(self._path(uri, range_, crc32), len(content)) as unfinished:
                unfinished.write_bytes(content)
        except OSError as error:
            self._report(error)

    def _path(self, uri: str, range_: Range, crc32: int) -> Path:
        return self._folder.file_of(uri.rstrip("/"), *range_, crc32)

    def _report(self, error: OSError) -> None:
        if not self._failed:
            log.warning("the cache of blocks in %s is not used: %s", self._folder.path, error)
            self._failed = True
