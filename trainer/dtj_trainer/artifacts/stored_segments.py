"""Reads files that are kept in segments, several requests at a time, and restores one for a retry."""

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
"""So many are in memory at most."""


def fetched(get: Callable[[str], bytes], keys: Sequence[str]) -> Iterator[bytes]:
    """The contents of some keys in their order. `get` is called by several threads; raises what that raises."""
    if len(keys) == 1:
        yield get(keys[0])
        return
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for start in range(0, len(keys), SEGMENTS_AT_ONCE):
            yield from pool.map(get, keys[start : start + SEGMENTS_AT_ONCE])


def restore_growing(store: Store, key: str, path: Path, *, content: bool) -> Begin | None:
    """Bring the file of that key to `path`, and say where its upload goes on; None when there is no such file.

    Without `content` nothing is brought: the local file begins empty, and goes to segments after those that are
    there. Raises S3Error.
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
