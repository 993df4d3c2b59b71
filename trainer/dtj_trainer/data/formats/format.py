"""What a format of shards offers to readers, to `stage` and to `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np


class Cut(NamedTuple):
    """A block within a shard. `offset` and `length` are in bytes."""

    offset: int
    length: int
    examples: int


class Example(NamedTuple):
    """An example as it is stored.

    `picture` holds the bytes of a JPEG, PNG or other picture file, or pixels: uint8, (channels, height, width).
    """

    picture: bytes | np.ndarray
    label: int


class Format(Protocol):
    """A format whose shards can be cut into blocks of whole examples, and read block by block."""

    name: str
    """The name in the index."""

    def blocks(self, shard: BinaryIO, size: int, *, where: str) -> Iterator[Cut]:
        """Cut a shard of `size` bytes into blocks of at least `index.BLOCK_BYTES`, save the last.

        `shard` must be seekable. Raises DataCorrupt, which names `where` and the number of the example in the shard.
        """

    def examples(self, content: bytes | memoryview, *, where: str) -> Iterator[Example]:
        """Yield the examples of a block, or of a whole shard, without decoding the pictures.

        Raises DataCorrupt, which names `where` and the number of the example in the block.
        """
