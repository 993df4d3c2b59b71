"""Reads files that are stored in segments, with several requests at a time, and restores one for a retry."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.segments import segments_of
from dtj_trainer.artifacts.upload_rules import MARK_BYTES, Begin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dtj_trainer.artifacts.store import Store

REQUESTS_AT_ONCE = 8
SEGMENTS_AT_ONCE = 16
"""The largest number of segments in memory."""


def fetched(get: Callable[[str], bytes], keys: Sequence[str]) -> Iterator[bytes]:
    """Yield the contents of some keys in their order. Several threads call `get`. Raises what `get` raises."""
    if len(keys) == 1:
        yield get(keys[0])
        return
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for start in range(0, len(keys), SEGMENTS_AT_ONCE):
            yield from pool.map(get, keys[start : start + SEGMENTS_AT_ONCE])


def restore_growing(store: Store, key: str, path: Path, *, content: bool) -> Begin | None:
    """Restore the file of that key to `path`; return where its upload continues, or None when no such file is stored.

    Without `content` nothing is restored: the local file begins empty, and its upload continues after the stored
    segments. Raises S3Error.
    """
    there = {item.key: item for item in store.named(key)}
    parts = segments_of(key, there)
    if not parts:
        return None
    last = parts[-1]
    if not content:
        return Begin(last.number + 1)
    arriving = path.with_name(f".{path.name}.restore")

    def get(part: str) -> bytes:
        found = store.get_bytes(part)
        store.received.add(len(found))
        return found

    size = at = 0
    mark = b""
    with arriving.open("wb") as file:
        for piece in fetched(get, [part.key for part in parts]):
            file.write(piece)
            at, size = size, size + len(piece)
            mark = (mark + piece)[-MARK_BYTES:]
    arriving.replace(path)
    return Begin(last.number, at, size, mark, there[last.key].etag)
