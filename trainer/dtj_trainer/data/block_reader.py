"""Reads the blocks of a split, from a cache or from their store, and compares them with the index.

One request brings several blocks where they lie next to each other: a store answers few large requests in less of
its time than many small ones, and so does Python.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dtj_trainer.data.checksum import crc32
from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.order import RUN, WINDOW
from dtj_trainer.data.ranged import Range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.data.cache import BlockCache
    from dtj_trainer.data.index import Block, SplitIndex
    from dtj_trainer.data.ranged import RangedReader

log = logging.getLogger(__name__)

REQUEST_BYTES = 8 << 20
"""The most bytes of several blocks in one request."""


def stretches(split: SplitIndex, window: int = WINDOW, run: int = RUN) -> list[range]:
    """Cut the blocks of a split into stretches, each of which one request can bring.

    The blocks of a stretch are of one run of an order with this window and these runs, and lie next to each other in
    a shard.
    """
    found: list[range] = []
    size, end = 0, (-1, 0)
    for number, block in enumerate(split.blocks):
        size += block.length
        if number % min(run, window) and (block.shard, block.offset) == end and size <= REQUEST_BYTES:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
            size = block.length
        end = block.shard, block.offset + block.length
    return found


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

    def fetch(self, stretch: range) -> Mapping[int, memoryview]:
        """Fetch the blocks of a stretch by one request, for `read`, which compares them with the index.

        Return nothing, so that `read` fetches each block, where the stretch is one block, or the cache has some of
        its blocks, or the shard is too short. Raises DataNotFound or DataUnavailable.
        """
        places = [self._split.blocks[block] for block in stretch]
        if len(stretch) == 1 or any(map(self._is_cached, places)):
            return {}
        try:
            content = memoryview(
                self._ranges.read(self._range(places[0], sum(each.length for each in places)))
            )
        except DataCorrupt:
            return {}
        starts = (each.offset - places[0].offset for each in places)
        return {
            block: content[start : start + each.length]
            for block, start, each in zip(stretch, starts, places, strict=True)
        }

    def read(self, block: int, fetched: memoryview | None = None) -> memoryview:
        """Return a block's bytes, compared with the CRC-32 in the index. `fetched`: the bytes that `fetch` returned.

        A block that differs is fetched a second time: the damage may have happened on the way. Raises DataCorrupt,
        DataNotFound or DataUnavailable.
        """
        place = self._split.blocks[block]
        range_ = self._range(place, place.length)
        uri = self._ranges.objects.uri
        if (
            fetched is None
            and self._cache
            and (cached := self._cache.get(uri, range_, place.crc32)) is not None
        ):
            return memoryview(cached)
        content = memoryview(self._ranges.read(range_)) if fetched is None else fetched
        if crc32(content) != place.crc32:
            log.warning(
                "%s: the CRC-32 differs from the index; the block is fetched again", self.where(block)
            )
            content = memoryview(self._ranges.read(range_))
        if crc32(content) != place.crc32:
            raise DataCorrupt(
                f"{self.where(block)}: the CRC-32 of its {place.length} bytes differs from the index: the shard is "
                "damaged, or has changed since the index was written"
            )
        if self._cache:
            self._cache.put(uri, range_, place.crc32, content)
        return content

    def _range(self, first: Block, length: int) -> Range:
        shard = self._split.shards[first.shard]
        return Range(shard.key, first.offset, length, shard.etag or shard.sha256)

    def _is_cached(self, place: Block) -> bool:
        uri, range_ = self._ranges.objects.uri, self._range(place, place.length)
        return self._cache is not None and self._cache.has(uri, range_, place.crc32)
