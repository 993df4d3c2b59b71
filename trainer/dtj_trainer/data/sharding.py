"""Which rank sees which examples: every example exactly once an epoch, in the same steps on all ranks.

An epoch is one permutation, by seed and epoch alone. Each step takes the next `batch_size * ranks`
examples of it and deals them out in order, so that the ranks' batches of a step, one after the other,
are the batch that a single process with the whole batch size would see.

The last step of an epoch has fewer: they are dealt out as evenly as can be, and nothing is repeated or
left out. A rank left with none gets one example at weight 0, so that every rank makes every step.
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
    """What one rank does in one step.

    `indices` are its examples, of which the first `count` count (all of them, or none of one).
    `total` is how many examples the step has over all ranks; `position` how many of the epoch are done
    after it.
    """

    indices: np.ndarray
    count: int
    total: int
    position: int


class Sharding:
    """How `examples` are dealt out to `ranks`; `batch_size` is that of each rank, `step_size` that of all."""

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
        """Steps of an epoch that are left when `position` examples are done."""
        return math.ceil((self.examples - position) / self.step_size)

    def order(self, epoch: int) -> np.ndarray:
        """The epoch's permutation of all examples, the same on every rank."""
        return np.random.default_rng([self._seed, epoch]).permutation(self.examples)

    def epoch(self, epoch: int, position: int = 0) -> Iterator[Share]:
        """The shares of this rank, from the example at `position` on: a resumed run goes on exactly there."""
        order = self.order(epoch)
        for start in range(position, self.examples, self.step_size):
            step = order[start : start + self.step_size]
            each, more = divmod(len(step), self._ranks)  # The first ones get one more.
            first, count = self._rank * each + min(self._rank, more), each + (self._rank < more)
            mine = step[first : first + count] if count else step[:1]
            yield Share(mine, count, len(step), start + len(step))


def slice_of(examples: int, *, rank: int, ranks: int) -> np.ndarray:
    """A rank's examples of a pass without batches over all ranks, such as a test: each example once."""
    return np.arange(rank, examples, ranks)
