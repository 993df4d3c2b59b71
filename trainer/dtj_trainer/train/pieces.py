"""Divides arrays for transfers between ranks: MPI counts items in 32 bits, and a transfer may need a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIECE_BYTES = 2**27
"""The largest piece to send, read or write at once. A rank may hold up to three copies of a piece."""


def pieces(length: int, item_bytes: int, limit: int = PIECE_BYTES) -> Iterator[slice]:
    """Divide `length` items of `item_bytes` into slices of at most `limit` bytes, or of one larger item."""
    step = max(limit // max(item_bytes, 1), 1)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def groups(sizes: Sequence[int], limit: int = PIECE_BYTES) -> Iterator[slice]:
    """Group neighbours of these sizes for one transfer: at most `limit` bytes, or a single larger item."""
    start = total = 0
    for at, size in enumerate(sizes):
        if at > start and total + size > limit:
            yield slice(start, at)
            start, total = at, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))
