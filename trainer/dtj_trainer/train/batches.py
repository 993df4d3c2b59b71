"""Batches in a framework's form, prepared ahead by threads where that saves time.

Threads instead of worker processes: a fork after the start of MPI is unsafe, and the work here runs outside of
Python's global lock anyway.
"""

from __future__ import annotations

import math
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from dtj_trainer.data.pictures import Pictures
from dtj_trainer.train.augment import shift_and_flip
from dtj_trainer.train.seeds import chances_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dtj_trainer.data.examples import Examples
    from dtj_trainer.data.sharding import Sharding, Share


Data = TypeVar("Data")

IN_LINE_BYTES = 2**18
"""Batches with fewer bytes, without augmentation, are prepared in the caller's thread: to wake another thread, and to
share Python's global lock with that thread, would take longer."""


class Batch(NamedTuple, Generic[Data]):
    """The examples of `share`, in the form that the model's `train` takes.

    `skipped`: the number of examples that can't be read and were left out of `share`.
    """

    data: Data
    share: Share
    skipped: int = 0


class Batches(Generic[Data]):
    """One rank's batches of an epoch, in order.

    Up to `workers` threads call `make` with the number of the epoch and a share; with 0 the caller's thread does.
    `expect` gets the numbers of the examples of all batches before they are made, as an iterator for any thread.
    """

    def __init__(
        self,
        sharding: Sharding,
        make: Callable[[int, Share], Batch[Data]],
        workers: int = 0,
        expect: Callable[[Iterator[np.ndarray]], None] = lambda _: None,
    ) -> None:
        self.sharding = sharding
        self._make = make
        self._workers = workers
        self._expect = expect
        self._waited = 0.0
        self._skipped = 0

    def epoch(self, epoch: int, position: int) -> Iterator[Batch[Data]]:
        """Yield the batches from the example at `position` on. Repeated calls give the same augmentation."""
        batches = self._epoch(epoch, position)
        while True:
            began = time.monotonic()
            batch = next(batches, None)
            self._waited += time.monotonic() - began
            if batch is None:
                return
            self._skipped += batch.skipped
            yield batch

    def take_waited(self) -> float:
        """Return the seconds spent waiting for batches since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    def take_skipped(self) -> int:
        """Return the number of examples that were left out of the batches since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    def _epoch(self, epoch: int, position: int) -> Iterator[Batch[Data]]:
        shares = self.sharding.epoch(epoch, position)
        self._expect(share.indices for share in self.sharding.epoch(epoch, position))
        if self._workers == 0:
            for share in shares:
                yield self._make(epoch, share)
            return
        with ThreadPoolExecutor(self._workers) as pool:
            ahead: deque[Future[Batch[Data]]] = deque()
            for share in shares:
                ahead.append(pool.submit(self._make, epoch, share))
                if len(ahead) > 2 * self._workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()


def picture_batches(
    examples: Examples,
    sharding: Sharding,
    prepare: Callable[[np.ndarray, np.ndarray], Data],
    *,
    workers: int,
    augment: bool,
    seed: int,
) -> Batches[Data]:
    """Make batches of `examples`, augmented or not. Neither ranks nor workers change a picture's augmentation.

    `prepare` gets pixels (uint8; batch, channels, height, width) and labels (int64; batch).
    """

    def make(epoch: int, share: Share) -> Batch[Data]:
        pictures = examples.read(share.indices)
        given = share.count
        if pictures.labels.min() < 0:
            share, pictures = _without_skipped(share, pictures)
        pixels = pictures.pixels
        if augment:
            pixels = shift_and_flip(pixels, chances_of(seed, epoch, share.indices))
        return Batch(prepare(pixels, pictures.labels), share, given - share.count)

    batch_bytes = math.prod(examples.shape) * sharding.batch_size
    in_line = len(examples.blocks) == 1 and batch_bytes <= IN_LINE_BYTES and not augment
    return Batches(sharding, make, 0 if in_line else workers, examples.expect)


def _without_skipped(share: Share, pictures: Pictures) -> tuple[Share, Pictures]:
    """Leave out the examples that can't be read. If none can be read, keep one with weight 0: no batch is empty.

    `total` still counts the skipped examples, because the other ranks divide by the same `total`: the gradient of the
    step is smaller by the share of the skipped examples.
    """
    kept = np.flatnonzero(pictures.labels >= 0)
    count = len(kept) if share.count else 0
    if not len(kept):
        return replace(share, indices=share.indices[:1], count=0), Pictures(
            pictures.pixels[:1], np.zeros(1, np.int64)
        )
    return replace(share, indices=share.indices[kept], count=count), pictures.read(kept)
