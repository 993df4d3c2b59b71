"""Batches in a framework's form, prepared ahead by threads where that saves time.

Threads instead of worker processes: a fork after the start of MPI is unsafe, and the work here runs outside of
Python's global lock anyway.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from dtj_trainer.train.augment import shift_and_flip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dtj_trainer.data.pictures import Pictures
    from dtj_trainer.data.sharding import Sharding, Share

Data = TypeVar("Data")

IN_LINE_BYTES = 2**18
"""Batches with fewer bytes, without augmentation, are prepared in the caller's thread: that is faster than waking a
thread and sharing Python's global lock with it."""


class Batch(NamedTuple, Generic[Data]):
    """The examples of `share`, in the form that the model's `train` takes."""

    data: Data
    share: Share


class Batches(Generic[Data]):
    """One rank's batches of an epoch, in order.

    Up to `workers` threads call `make` with the number of the epoch and a share; with 0 the caller's thread does.
    """

    def __init__(
        self, sharding: Sharding, make: Callable[[int, Share], Batch[Data]], workers: int = 0
    ) -> None:
        self.sharding = sharding
        self._make = make
        self._workers = workers
        self._waited = 0.0

    def epoch(self, epoch: int, position: int) -> Iterator[Batch[Data]]:
        """Yield the batches from the example at `position` on. Repeated calls give the same augmentation."""
        batches = self._epoch(epoch, position)
        while True:
            began = time.monotonic()
            batch = next(batches, None)
            self._waited += time.monotonic() - began
            if batch is None:
                return
            yield batch

    def take_waited(self) -> float:
        """Return the seconds spent waiting for batches since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    def _epoch(self, epoch: int, position: int) -> Iterator[Batch[Data]]:
        shares = self.sharding.epoch(epoch, position)
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
    pictures: Pictures,
    sharding: Sharding,
    prepare: Callable[[np.ndarray, np.ndarray], Data],
    *,
    workers: int,
    augment: bool,
    seed: int,
) -> Batches[Data]:
    """Make batches of `pictures`, augmented or not.

    `prepare` gets pixels (uint8; batch, channels, height, width) and labels (int64; batch).
    """

    def make(epoch: int, share: Share) -> Batch[Data]:
        pixels = pictures.pixels[share.indices]
        if augment:
            chance = np.random.default_rng([seed, epoch, share.position, int(share.indices[0])])
            pixels = shift_and_flip(pixels, chance)
        return Batch(prepare(pixels, pictures.labels[share.indices]), share)

    batch_bytes = pictures.pixels[:1].nbytes * sharding.batch_size
    return Batches(sharding, make, workers if augment or batch_bytes > IN_LINE_BYTES else 0)
