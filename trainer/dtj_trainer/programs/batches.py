"""Batches, made ahead of time by threads, as whatever the framework takes.

Threads, not worker processes: forking after MPI has started is not safe, and what is done here runs
outside of Python's lock anyway.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from dtj_trainer.programs.augment import shift_and_flip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dtj_trainer.data.pictures import Pictures
    from dtj_trainer.data.sharding import Sharding, Share

Data = TypeVar("Data")


class Batch(NamedTuple, Generic[Data]):
    """`data`: what `prepare` made of the pictures of `share`."""

    data: Data
    share: Share


class BatchMaker(Generic[Data]):
    """Makes one rank's batches of an epoch, in order.

    `prepare` gets pixels (uint8; batch, channels, height, width) and labels (int64; batch), and is called
    by the threads.
    """

    def __init__(
        self,
        pictures: Pictures,
        sharding: Sharding,
        prepare: Callable[[np.ndarray, np.ndarray], Data],
        *,
        workers: int,
        augment: bool,
        seed: int,
    ) -> None:
        self._pictures = pictures
        self._sharding = sharding
        self._prepare = prepare
        self._workers = workers
        self._augment = augment
        self._seed = seed

    def epoch(self, epoch: int, position: int) -> Iterator[Batch[Data]]:
        """The batches from the example at `position` on; augmented the same however often they are made."""
        shares = self._sharding.epoch(epoch, position)
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

    def _make(self, epoch: int, share: Share) -> Batch[Data]:
        pixels = self._pictures.pixels[share.indices]
        if self._augment:
            chance = np.random.default_rng([self._seed, epoch, share.position, int(share.indices[0])])
            pixels = shift_and_flip(pixels, chance)
        return Batch(self._prepare(pixels, self._pictures.labels[share.indices]), share)
