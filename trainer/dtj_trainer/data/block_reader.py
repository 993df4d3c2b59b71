"""Reads the blocks of a split, from a cache or from their store, and compares them with the index."""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING

from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.ranged import Range

if TYPE_CHECKING:
    from dtj_trainer.data.cache import BlockCache
    from dtj_trainer.data.index import SplitIndex
    from dtj_trainer.data.ranged import RangedReader

log = logging.getLogger(__name__)


class BlockReader:
    """The blocks of one split. Threads may share a reader."""

    def __init__(self, ranges: RangedReader, split: SplitIndex, cache: BlockCache | None = None) -> None:
        self._ranges = ranges
        self._split = split
        # A local folder needs no cache: its files are in the page cache already.
        self._cache = cache if ranges.objects.remote else None

    def where(self, block: int) -> str:
        """Return the place of a block, for messages."""
        place = self._split.blocks[block]
        uri = self._ranges.objects.uri.rstrip("/")
        return f"{uri}/{self._split.shards[place.shard].key}, block at byte {place.offset}"

    def read(self, block: int) -> bytes:
        """Return a block's bytes, whose CRC-32 is the one of the index.

        A block that differs is fetched a second time: the damage may have happened on the way. Raises DataCorrupt,
        DataNotFound or DataUnavailable.
        """
        place = self._split.blocks[block]
        shard = self._split.shards[place.shard]
        range_ = Range(shard.key, place.offset, place.length, shard.etag or shard.sha256)
        uri = self._ranges.objects.uri
        if self._cache and (cached := self._cache.get(uri, range_, place.crc32)) is not None:
            return cached
        content = self._ranges.read(range_)
        if zlib.crc32(content) != place.crc32:
            log.warning(
                "%s: the CRC-32 differs from the index; the block is fetched again", self.where(block)
            )
            content = self._ranges.read(range_)
        if zlib.crc32(content) != place.crc32:
            raise DataCorrupt(
                f"{self.where(block)}: the CRC-32 of its {place.length} bytes differs from the index: the shard is "
                "damaged, or has changed since the index was written"
            )
        if self._cache:
            self._cache.put(uri, range_, place.crc32, content)
        return content
