"""A cache of blocks in a folder, which the processes of a pod, and the pods of a node, share without locks.

A block is one file, named by a digest of the block's identity: URI, object, version of the object, offset, length,
CRC-32. A reader compares a block's length and CRC-32, so that a damaged file is a miss.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.cache_folder import CacheFolder, note_use
from dtj_trainer.data import checksum

if TYPE_CHECKING:
    from pathlib import Path

    from dtj_trainer.data.ranged import Range

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
