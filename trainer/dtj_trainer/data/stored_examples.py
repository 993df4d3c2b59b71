"""Examples in the blocks of an indexed set, in S3 or in a folder: read in windows of blocks, decoded in threads."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from dtj_trainer.artifacts.download import ByteCount
from dtj_trainer.data import spread
from dtj_trainer.data.block_reader import BlockReader, stretches
from dtj_trainer.data.daemon_pool import DaemonPool
from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.formats.images import PictureForm, pixels_of
from dtj_trainer.data.mixing import Mixing, mixing_of
from dtj_trainer.data.order import RUN, WINDOW
from dtj_trainer.data.pictures import Pictures
from dtj_trainer.data.ranged import CONNECTIONS
from dtj_trainer.data.spread import Stock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dtj_trainer.data.cache import BlockCache
    from dtj_trainer.data.formats.format import Example, Format
    from dtj_trainer.data.index import SplitIndex
    from dtj_trainer.data.ranged import RangedReader


# BlocksAhead keeps the blocks of the coming batches in memory, loaded in the order of the batches, within a limit of
# bytes.

T = TypeVar("T")

BATCHES_AHEAD = 1024
"""The most batches to look ahead. A set that fits into memory reaches this limit before the limit of bytes."""


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
        """Raise the limit of the blocks in memory to so many bytes, unless the limit is higher already."""
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


log = logging.getLogger(__name__)

MEMORY_BYTES = 256 * 2**20
"""The most bytes of blocks in memory: about two windows of the order, the one that is read and the next one."""

MOST_TIMES = 4
"""A rank that continues an epoch of more ranks uses at most this many times its memory, and then reads blocks
again."""
SKIPPED = -1


class StoredExamples:
    """Implements Examples for one split of an indexed set. Threads may share an object; close it at the end.

    Pictures are decoded to `form`, in which all of them must have the same shape. `memory` limits the bytes of blocks
    in memory, as stored, and is raised to hold `window` blocks, the examples of which are read in mixed order.
    `skip_corrupt`: an example that can't be read gets the label SKIPPED, and `skipped` counts it each time.
    """

    def __init__(
        self,
        ranges: RangedReader,
        split: SplitIndex,
        format_: Format,
        form: PictureForm,
        *,
        cache: BlockCache | None = None,
        memory: int = MEMORY_BYTES,
        window: int = WINDOW,
        skip_corrupt: bool = False,
    ) -> None:
        self.blocks = np.fromiter((block.examples for block in split.blocks), np.int64, len(split.blocks))
        self.skipped = ByteCount()
        self._split = split
        self._ends = np.cumsum(self.blocks)
        self._starts = self._ends - self.blocks
        self._format = format_
        self._form = form
        self._skip = skip_corrupt
        self._reader = BlockReader(ranges, split, cache)
        counts = split.label_counts()
        self.stock: Stock | None = None
        if counts and counts.is_sorted():
            lengths = np.array([block.length for block in split.blocks])
            self.stock = Stock(counts.commonest(), lengths)
        self._stretches = stretches(split, window, spread.RUN if self.stock else RUN)
        self._stretch_ends = self._ends[[stretch.stop - 1 for stretch in self._stretches]]
        sizes = [block.length for block in split.blocks]
        self._ahead: BlocksAhead[Sequence[Example | DataCorrupt]] = BlocksAhead(
            self._load,
            [sum(sizes[stretch.start : stretch.stop]) for stretch in self._stretches],
            memory=max(memory, sum(sorted(sizes)[-window:])),
            threads=CONNECTIONS,
        )
        self._threads = len(os.sched_getaffinity(0))
        self._decoders = ThreadPoolExecutor(self._threads, "dtj-decode")
        self._lock = threading.Lock()
        self._shape: tuple[int, ...] | None = None

    def __len__(self) -> int:
        """Return the number of examples."""
        return int(self._ends[-1])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each picture: those of the first picture that can be read."""
        if self._shape is None:
            for id_ in range(len(self)):
                if self._decode_some(np.array([id_]), self.stored(np.array([id_])))[0] is not None:
                    break
        if self._shape is None:
            raise DataCorrupt(f"{self._reader.where(0)} and all others: no example of the split can be read")
        channels, height, width = self._shape
        return channels, height, width

    @property
    def most_bytes(self) -> int:
        """The most bytes of blocks that were in memory at once."""
        return self._ahead.most_bytes

    def mixing(self, batch: int, ranks: int) -> Mixing | None:
        """See Examples."""
        return mixing_of(self._split, batch, ranks)

    def widen(self, times: float) -> None:
        """See Examples. The ranks that have left the job held a part of this epoch's blocks."""
        self._ahead.allow(int(min(times, MOST_TIMES) * MEMORY_BYTES))

    def expect(self, ids: Iterator[np.ndarray]) -> None:
        """See Examples."""
        self._ahead.expect(np.unique(self._stretches_of(batch)).tolist() for batch in ids)

    def read(self, ids: np.ndarray) -> Pictures:
        """See Examples."""
        examples = self.stored(ids)
        each = max(1, len(examples) // (4 * self._threads))
        starts = range(0, len(examples), each)
        decoded = self._decoders.map(
            lambda start: self._decode_some(ids[start : start + each], examples[start : start + each]), starts
        )
        found = list(chain.from_iterable(decoded))
        skipped = np.zeros(self.shape, np.uint8) if None in found else np.empty(0)
        pixels = [skipped if one is None else one[0] for one in found]
        labels = [SKIPPED if one is None else one[1] for one in found]
        return Pictures(np.stack(pixels), np.array(labels, np.int64))

    def stored(self, ids: np.ndarray) -> list[Example | DataCorrupt]:
        """Return the examples with these numbers as they are stored, or why their block can't be read."""
        stretches = self._stretches_of(ids)
        taken = self._ahead.take(np.unique(stretches).tolist())
        # Places count from the end of the stretch: its last example has the place -1.
        places = ids - self._stretch_ends[stretches]
        return [
            taken[number][place] for number, place in zip(stretches.tolist(), places.tolist(), strict=True)
        ]

    def where(self, id_: int) -> str:
        """Return the place of an example, for messages."""
        block = int(self._blocks_of(np.array(id_)))
        return f"{self._reader.where(block)}, example {id_ - int(self._starts[block])} of the block"

    def close(self) -> None:
        """End the threads."""
        self._ahead.close()
        self._decoders.shutdown(wait=False, cancel_futures=True)

    def _blocks_of(self, ids: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._ends, ids, side="right")

    def _stretches_of(self, ids: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._stretch_ends, ids, side="right")

    def _load(self, stretch: int) -> Sequence[Example | DataCorrupt]:
        blocks = self._stretches[stretch]
        fetched = self._reader.fetch(blocks)
        return list(chain.from_iterable(self._load_block(block, fetched.get(block)) for block in blocks))

    def _load_block(self, block: int, fetched: memoryview | None) -> Sequence[Example | DataCorrupt]:
        try:
            content, where = self._reader.read(block, fetched), self._reader.where(block)
            examples = list(self._format.examples(content, where=where))
            if len(examples) != self.blocks[block]:
                raise DataCorrupt(
                    f"{where} has {len(examples)} examples, and the index of the set says {self.blocks[block]}"
                )
        except DataCorrupt as error:
            if not self._skip:
                raise
            log.warning("skipped %d examples: %s", self.blocks[block], error)
            return [error] * int(self.blocks[block])
        return examples

    def _decode_some(
        self, ids: np.ndarray, examples: Sequence[Example | DataCorrupt]
    ) -> list[tuple[np.ndarray, int] | None]:
        return [self._decode_one(int(id_), example) for id_, example in zip(ids, examples, strict=True)]

    def _decode_one(self, id_: int, example: Example | DataCorrupt) -> tuple[np.ndarray, int] | None:
        """Return pixels and label; None for an example that is skipped."""
        # `_load_block` returns an error only with `skip_corrupt`, and has logged the error.
        if isinstance(example, DataCorrupt):
            self.skipped.add(1)
            return None
        where = self.where(id_)
        try:
            pixels = pixels_of(example.picture, self._form, where=where)
            self._check_shape(pixels.shape, where)
        except DataCorrupt as error:
            if not self._skip:
                raise
            log.warning("skipped an example: %s", error)
            self.skipped.add(1)
            return None
        return pixels, example.label

    def _check_shape(self, shape: tuple[int, ...], where: str) -> None:
        with self._lock:
            if self._shape is None:
                self._shape = shape
        if shape != self._shape:
            raise DataCorrupt(
                f"{where}: channels, height and width are {_by(shape)}, those of other pictures "
                f"{_by(self._shape)}: pictures of different sizes need an image size (--image-size)"
            )


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
