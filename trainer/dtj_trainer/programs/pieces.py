"""How an array is cut for the ranks' exchange. MPI counts in 32 bits, and a buffer for a piece is memory, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIECE_BYTES = 2**27
"""The most that travels, or is read or written, as one. A rank may hold up to three copies of it."""


def pieces(length: int, item_bytes: int, limit: int = PIECE_BYTES) -> Iterator[slice]:
    """Cut `length` items of so many bytes into runs of at most `limit` bytes, or of one item where that is larger."""
    step = max(limit // max(item_bytes, 1), 1)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def groups(sizes: Sequence[int], limit: int = PIECE_BYTES) -> Iterator[slice]:
    """Which neighbours of so many bytes travel together: at most `limit` bytes, or a single one."""
    start = total = 0
    for at, size in enumerate(sizes):
        if at > start and total + size > limit:
            yield slice(start, at)
            start, total = at, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))
