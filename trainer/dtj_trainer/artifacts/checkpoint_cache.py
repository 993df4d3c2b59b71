"""Files of checkpoints in the node's cache: each file comes from the bucket once for all pods that share the cache.

A file is named by its size and SHA-256 as the manifest in the bucket tells them. A pod copies it into its own
workspace and verifies the copy, so that no other pod can give it other content, not even after the check.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
import time
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.cache_folder import CacheFolder, limit_from_environment, note_use
from dtj_trainer.artifacts.shared_file import open_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dtj_trainer.artifacts.manifest import StoredFile

log = logging.getLogger(__name__)

MOST_OF_LIMIT = 0.5
"""A checkpoint larger than this part of the cache is not kept: it would drive out all blocks of data sets."""
WAIT_SECONDS = 30.0
SLOW_BYTES_PER_SECOND = 20e6
"""A pod waits WAIT_SECONDS, and the time of a download at this speed, for another pod that fetches the file."""
_POLL_SECONDS = 0.1
_BLOCK_BYTES = 2**22
_LOCKS = "locks"
"""The folder of the files that pods lock."""


class BeingFetched(Exception):
    """Another process fetches the file."""


class CheckpointCache:
    """At most `limit` bytes of files below `folder`, together with what else is in it; see CacheFolder.

    An error of the file system, such as a full disk, is logged once; files then come from the bucket.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = CacheFolder(folder, limit)
        self._failed = False
        self.bytes_copied = 0
        """Bytes that came from the cache."""

    def takes(self, size: int) -> bool:
        """Return whether the cache has room for a checkpoint of so many bytes beside other files."""
        return size <= self._folder.limit * MOST_OF_LIMIT

    def bring(
        self, file: StoredFile, path: Path, download: Callable[[], str | None], *, wait: bool
    ) -> str | None:
        """Bring a file to `path`: from the cache, or by `download`, after which the cache has it.

        Returns what `download` returns: a description of the fault, or None. While another process downloads the
        file, the call waits for that process, or without `wait` raises BeingFetched.
        """
        deadline = time.monotonic() + WAIT_SECONDS + file.size / SLOW_BYTES_PER_SECOND
        while not self._copy(file, path):
            with self._locked(file) as locked:
                if locked or time.monotonic() > deadline:
                    # The process that had the lock may have brought the file since the last look.
                    return None if self._copy(file, path) else self._download(file, path, download)
            if not wait:
                raise BeingFetched
            time.sleep(_POLL_SECONDS)
        return None

    def _download(self, file: StoredFile, path: Path, download: Callable[[], str | None]) -> str | None:
        fault = download()
        if fault is None and not self._folder.full:
            try:
                with (
                    self._folder.writing(self._path(file), file.size) as unfinished,
                    path.open("rb", buffering=0) as source,
                ):
                    _copied(source, unfinished)
            except OSError as error:
                self._report(error)
        return fault

    def add(self, file: StoredFile, write: Callable[[Path], None]) -> bool:
        """Put a file into the cache, which `write` writes to the path that it gets; return whether it is new there.

        Raises what `write` raises, but no error of the cache's file system.
        """
        if self._folder.full:
            return False
        try:
            if self._has(file):
                return False
            with self._folder.writing(self._path(file), file.size) as unfinished:
                write(unfinished)
        except OSError as error:
            self._report(error)
            return False
        return True

    def _has(self, file: StoredFile) -> bool:
        """Return whether there is such a file, and note its use. Raises OSError."""
        try:
            os.utime(self._path(file), follow_symlinks=False)
        except FileNotFoundError:
            return False
        except PermissionError:  # The file of another user.
            pass
        return True

    def remove(self, file: StoredFile) -> None:
        """Remove a file that this process has added, unless it can't be removed."""
        with suppress(OSError):
            self._path(file).unlink(missing_ok=True)

    def _copy(self, file: StoredFile, path: Path) -> bool:
        """Copy a file from the cache; return False if the cache does not have it, or not with its SHA-256."""
        cached, arriving = self._path(file), path.with_name(f"{path.name}.part")
        try:
            # Another pod of the namespace may have put anything there.
            descriptor = os.open(cached, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with FileIO(descriptor) as source:
                if _is_file_of(file, descriptor) and _copied(source, arriving, file.size) == file.sha256:
                    arriving.replace(path)
                    note_use(cached, descriptor)
                    self.bytes_copied += file.size
                    return True
        except FileNotFoundError:
            return False
        except OSError as error:
            self._report(error)
            return False
        finally:
            arriving.unlink(missing_ok=True)
        log.warning("%s: the cached copy of %s is damaged; it is fetched from the bucket", cached, file.path)
        with suppress(OSError):
            cached.unlink(missing_ok=True)
        return False

    def _path(self, file: StoredFile) -> Path:
        return self._folder.file_of("checkpoint", file.size, file.sha256)

    @contextmanager
    def _locked(self, file: StoredFile) -> Iterator[bool]:
        """Hold the file's lock; False while another process has it. The kernel ends the lock of a dead process.

        Where there are no locks, nobody waits: pods may then fetch a file more than once.
        """
        try:
            descriptor = self._opened_lock(self._path(file).parent.name)
        except OSError as error:
            self._report(error)
            yield True
            return
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
            except BlockingIOError:
                locked = False
            except OSError:  # Some network file systems have no locks.
                locked = True
            yield locked
        finally:
            os.close(descriptor)

    def _opened_lock(self, name: str) -> int:
        path = self._folder.path / _LOCKS / name
        self._folder.make(path.parent)
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return open_shared(path, flags, self._folder.path)

    def _report(self, error: OSError) -> None:
        if not self._failed:
            log.warning("the cache %s is not used for checkpoints: %s", self._folder.path, error)
            self._failed = True


def _is_file_of(file: StoredFile, descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_size == file.size


def _copied(source: FileIO, target: Path, at_most: int | None = None) -> str:
    """Copy a file's bytes to `target`; return their SHA-256."""
    digest, left = hashlib.sha256(), at_most
    with target.open("wb", buffering=0) as file:
        while block := source.read(_BLOCK_BYTES if left is None else min(_BLOCK_BYTES, left)):
            digest.update(block)
            rest = memoryview(block)
            while rest:
                rest = rest[file.write(rest) :]
            left = None if left is None else left - len(block)
    return digest.hexdigest()


def cache_from_environment(environment: Mapping[str, str] = os.environ) -> CheckpointCache | None:
    """Return the node's cache; None where the pod has none. Raises ValueError for a variable that is no size."""
    folder = environment.get(contract.ENV_CHECKPOINT_CACHE)
    return CheckpointCache(Path(folder), limit_from_environment(environment)) if folder else None
