"""What a format of shards offers to readers, to `stage` and to `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.index import BLOCK_BYTES, MAX_EXAMPLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np


class Cut(NamedTuple):
    """A block within a shard. `offset` and `length` are in bytes."""

    offset: int
    length: int
    examples: int


class Example(NamedTuple):
    """An example as it is stored.

    `picture` holds the bytes of a JPEG, PNG or other picture file, or pixels: uint8, (channels, height, width). It
    may be a part of the block's memory.
    """

    picture: bytes | memoryview | np.ndarray
    label: int


class Format(Protocol):
    """A format whose shards can be cut into blocks of whole examples, and read block by block."""

    @property
    def name(self) -> str:
        """The name in the index."""

    def blocks(self, shard: BinaryIO, size: int, *, where: str) -> Iterator[Cut]:
        """Cut a shard of `size` bytes into blocks of at least `index.BLOCK_BYTES`, except the last block.

        `shard` must be seekable. Raises DataCorrupt, which names `where` and the number of the example in the shard.
        """

    def examples(self, content: bytes | memoryview, *, where: str) -> Iterator[Example]:
        """Yield the examples of a block, or of a whole shard, without decoding the pictures.

        Raises DataCorrupt, which names `where` and the number of the example in the block.
        """


def cuts(ends: Iterable[int], *, where: str) -> Iterator[Cut]:
    """Gather examples into blocks. `ends` are the offsets in bytes behind each example of a shard."""
    start, begin, count = 0, 0, 0
    for number, end in enumerate(ends):
        if end - begin > MAX_EXAMPLE_BYTES:
            raise DataCorrupt(
                f"{where}, example {number}: {end - begin} bytes; the limit is {MAX_EXAMPLE_BYTES}"
            )
        begin, count = end, count + 1
        if end - start >= BLOCK_BYTES:
            yield Cut(start, end - start, count)
            start, count = end, 0
    if count:
        yield Cut(start, begin - start, count)
