"""Distributes examples among ranks: every example exactly once an epoch, with the same number of steps on all ranks.

An epoch is one permutation, which depends on seed and epoch only. Each step takes the next `batch_size * ranks`
examples and assigns them to ranks in order. The concatenated batches of all ranks in a step are therefore the batch
that a single process with the whole batch size would see.

The last step of an epoch may have fewer examples. They are distributed as evenly as possible; none is repeated or
left out. A rank without an example gets one of weight 0, so that every rank makes every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Share:
    """The work of one rank in one step.

    `indices` are the rank's examples, of which the first `count` count (all, or none of one). `total` is the number
    of examples of the step over all ranks; `position` is the number of the epoch's examples done after the step.
    """

    indices: np.ndarray
    count: int
    total: int
    position: int


class Sharding:
    """Distributes `examples` among `ranks`. `batch_size` is the batch of one rank, `step_size` that of all ranks."""

    def __init__(self, examples: int, batch_size: int, *, rank: int, ranks: int, seed: int) -> None:
        if examples < 1 or batch_size < 1 or not 0 <= rank < ranks:
            raise ValueError(
                f"can't share {examples} examples in batches of {batch_size} with rank {rank}/{ranks}"
            )
        self.examples = examples
        self.batch_size = batch_size
        self.step_size = batch_size * ranks
        self._rank = rank
        self._ranks = ranks
        self._seed = seed

    def steps(self, position: int = 0) -> int:
        """Return the steps left in an epoch after `position` examples."""
        return math.ceil((self.examples - position) / self.step_size)

    def order(self, epoch: int) -> np.ndarray:
        """Return the epoch's permutation of all examples, the same on every rank."""
        return np.random.default_rng([self._seed, epoch]).permutation(self.examples)

    def epoch(self, epoch: int, position: int = 0) -> Iterator[Share]:
        """Yield this rank's shares from the example at `position` on: a resumed run continues exactly there."""
        order = self.order(epoch)
        for start in range(position, self.examples, self.step_size):
            step = order[start : start + self.step_size]
            each, more = divmod(len(step), self._ranks)  # The first ranks get one more.
            first, count = self._rank * each + min(self._rank, more), each + (self._rank < more)
            mine = step[first : first + count] if count else step[:1]
            yield Share(mine, count, len(step), start + len(step))


def slice_of(examples: int, *, rank: int, ranks: int) -> np.ndarray:
    """Return a rank's examples of a pass without common batches, such as a test. Each example has one rank."""
    return np.arange(rank, examples, ranks)
