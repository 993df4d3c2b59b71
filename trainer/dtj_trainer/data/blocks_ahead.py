"""Keeps the blocks of the coming batches in memory, loaded in the order of the batches, within a limit of bytes."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from dtj_trainer.data.daemon_pool import DaemonPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

T = TypeVar("T")

BATCHES_AHEAD = 1024
"""Batches looked ahead at most, for sets that fit the memory."""


class BlocksAhead(Generic[T]):
    """Gives out blocks by number. `load` loads one; `sizes` are the bytes of each block in memory.

    `threads` threads load the blocks of the batches that `expect` announced, while the blocks fit in `memory` bytes.
    A block that a caller of `take` waits for is loaded in any case. A block that neither a batch ahead nor a caller
    needs makes room, the one that was used least recently first. `most_bytes`: the most bytes held so far.
    """

    def __init__(self, load: Callable[[int], T], sizes: Sequence[int], *, memory: int, threads: int) -> None:
        self._load = load
        self._sizes = sizes
        self._memory = memory
        self._pool = DaemonPool(threads, "dtj-blocks")
        self._lock = threading.Lock()
        self._held: OrderedDict[int, Future[T]] = OrderedDict()
        self._bytes = 0
        self.most_bytes = 0
        self._wanted: Counter[int] = Counter()
        """How many batches ahead, and callers of `take`, need each block."""
        self._coming: Iterator[Iterable[int]] = iter(())
        self._ahead: deque[frozenset[int]] = deque()
        self._waiting: deque[int] = deque()
        """The blocks of the last batch of `_ahead` that have no room yet."""

    def expect(self, batches: Iterable[Iterable[int]]) -> None:
        """Announce the blocks of the coming batches, in place of those that were announced before."""
        with self._lock:
            for batch in self._ahead:
                self._wanted.subtract(batch)
            self._ahead.clear()
            self._waiting.clear()
            self._coming = iter(batches)
            self._look_ahead()

    def take(self, blocks: Iterable[int]) -> dict[int, T]:
        """Return the blocks of one batch. Raises what `load` raises; a later call loads the block again."""
        batch = frozenset(blocks)
        with self._lock:
            if batch in self._ahead:
                self._ahead.remove(batch)
                self._wanted.subtract(batch)
            self._wanted.update(batch)
            taken = {block: self._hold(block) for block in sorted(batch)}
        try:
            return {block: future.result() for block, future in taken.items()}
        finally:
            with self._lock:
                self._wanted.subtract(batch)
                for block, future in taken.items():
                    if future.done() and future.exception() and self._held.get(block) is future:
                        self._forget(block)
                self._look_ahead()

    def allow(self, memory: int) -> None:
        """Let the blocks have at least so many bytes."""
        with self._lock:
            self._memory = max(self._memory, memory)

    def close(self) -> None:
        """End the threads and release the blocks."""
        self._pool.close()
        with self._lock:
            self._coming = iter(())
            self._held.clear()

    def _look_ahead(self) -> None:
        while True:
            while self._waiting:
                block = self._waiting[0]
                if block not in self._held and not self._make_room(self._sizes[block]):
                    return
                self._hold(block)
                self._waiting.popleft()
            batch = next(self._coming, None) if len(self._ahead) < BATCHES_AHEAD else None
            if batch is None:
                return
            needed = frozenset(batch)
            self._ahead.append(needed)
            self._wanted.update(needed)
            self._waiting.extend(sorted(needed))

    def _hold(self, block: int) -> Future[T]:
        """Return the block's future; begin to load the block if it is not held."""
        if block not in self._held:
            self._make_room(self._sizes[block])
            self._held[block] = self._pool.submit(partial(self._load, block))
            self._bytes += self._sizes[block]
            self.most_bytes = max(self.most_bytes, self._bytes)
        self._held.move_to_end(block)
        return self._held[block]

    def _make_room(self, amount: int) -> bool:
        """Forget blocks that nobody needs until `amount` more bytes fit. Return whether they do."""
        if self._bytes + amount > self._memory:
            for block in [block for block in self._held if not self._wanted[block]]:
                if self._held[block].done() or self._held[block].cancel():
                    self._forget(block)
                if self._bytes + amount <= self._memory:
                    break
        return self._bytes + amount <= self._memory

    def _forget(self, block: int) -> None:
        del self._held[block]
        self._bytes -= self._sizes[block]
        self._wanted += Counter()  # Drop the zeros, so that the counter does not grow with the set.
