"""Batches as tensors, made ahead of time by threads.

Threads, not worker processes: forking after MPI has started is not safe, and what is done here runs
outside of Python's lock anyway.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtj_trainer.data.pictures import Pictures
    from dtj_trainer.data.sharding import Sharding, Share

_PADDING = 4
"""Pixels by which an augmented picture is shifted at most."""


class Batch(NamedTuple):
    """`pixels`: uint8, (batch, channels, height, width). `labels`: int64, (batch,). See Share for the rest."""

    pixels: Tensor
    labels: Tensor
    share: Share


class BatchMaker:
    """Makes one rank's batches of an epoch, in order."""

    def __init__(
        self, pictures: Pictures, sharding: Sharding, *, workers: int, augment: bool, seed: int, pin: bool
    ) -> None:
        self._pixels = torch.from_numpy(pictures.pixels)
        self._labels = torch.from_numpy(pictures.labels)
        self._sharding = sharding
        self._workers = workers
        self._augment = augment
        self._seed = seed
        self._pin = pin

    def epoch(self, epoch: int, position: int) -> Iterator[Batch]:
        """The batches from the example at `position` on; augmented the same however often they are made."""
        shares = self._sharding.epoch(epoch, position)
        if self._workers == 0:
            for share in shares:
                yield self._make(epoch, share)
            return
        with ThreadPoolExecutor(self._workers) as pool:
            ahead: deque[Future[Batch]] = deque()
            for share in shares:
                ahead.append(pool.submit(self._make, epoch, share))
                if len(ahead) > 2 * self._workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _make(self, epoch: int, share: Share) -> Batch:
        indices = torch.from_numpy(share.indices)
        pixels = self._pixels[indices]
        if self._augment:
            chance = np.random.default_rng([self._seed, epoch, share.position, int(share.indices[0])])
            pixels = _shift_and_flip(pixels, chance)
        labels = self._labels[indices]
        if self._pin:
            pixels, labels = pixels.pin_memory(), labels.pin_memory()
        return Batch(pixels, labels, share)


def _shift_and_flip(pixels: Tensor, chance: np.random.Generator) -> Tensor:
    """Each picture shifted by up to _PADDING pixels (black comes in), and mirrored half of the time."""
    count, _, height, width = pixels.shape
    padded = torch.nn.functional.pad(pixels, (_PADDING,) * 4)
    down = torch.from_numpy(chance.integers(0, 2 * _PADDING + 1, count))
    right = torch.from_numpy(chance.integers(0, 2 * _PADDING + 1, count))
    mirrored = torch.from_numpy(chance.integers(0, 2, count).astype(bool))
    rows = down[:, None] + torch.arange(height)
    columns = right[:, None] + torch.arange(width)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    # Advanced indices around the slice put (batch, rows, columns) first and channels last.
    each = torch.arange(count)[:, None, None]
    return padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
