"""Distributes examples among ranks: every example exactly once an epoch, with the same number of steps on all ranks.

An epoch has one order, which depends on the data's blocks, on seed and epoch only: see `order`. Each step takes the
next `step_size` examples. A position in the order, the number of examples that all ranks together have done, is
therefore enough to go on with any number of ranks. Only the order of a set that is sorted by class also depends on
the number of ranks that begin the epoch: see `spread`. The step's examples are sorted by the place of their blocks
and cut among the ranks, so that a rank reads about its share of a window's blocks. The concatenated batches of all
ranks in a step are the batch that a single process with the whole batch size would see.

The last step of an epoch may have fewer examples. They are distributed as evenly as possible; none is repeated or
left out. A rank without an example gets one of weight 0, so that every rank makes every step.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer.data.order import RUN, WINDOW, Order
from dtj_trainer.data.spread import SpreadOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtj_trainer.data.spread import Stock


@dataclass(frozen=True)
class Share:
    """The work of one rank in one step.

    `indices` are the rank's examples. `count` is their number, or 0 where the only one has weight 0. `total` is the
    number of examples of the step over all ranks; `position` is the number of the epoch's examples done after the
    step.
    """

    indices: np.ndarray
    count: int
    total: int
    position: int


class Sharding:
    """Distributes examples among `ranks`, `step_size` in each step.

    `blocks`: the examples of each block; a number means a single block. `batch_size` is the batch of one rank, from
    which `step_size` follows unless it is given. `window`: see `order`. `stock`: of a set that is sorted by class.
    """

    def __init__(
        self,
        blocks: np.ndarray | int,
        batch_size: int,
        *,
        rank: int,
        ranks: int,
        seed: int,
        step_size: int | None = None,
        window: int = WINDOW,
        stock: Stock | None = None,
    ) -> None:
        self._blocks = np.atleast_1d(np.asarray(blocks, np.int64))
        self.examples = int(self._blocks.sum())
        self.step_size = batch_size * ranks if step_size is None else step_size
        if self.examples < 1 or self.step_size < 1 or not 0 <= rank < ranks:
            raise ValueError(
                f"can't share {self.examples} examples in batches of {batch_size} with rank {rank}/{ranks}"
            )
        self.batch_size = math.ceil(self.step_size / ranks)
        self._rank, self._ranks, self.seed, self._window, self._stock = rank, ranks, seed, window, stock
        self._begun: dict[int, int] = {}

    @property
    def name(self) -> str:
        """A hash of all that determines the order. A position is valid only in orders with the same name."""
        of_blocks = f"{self._window} {RUN}" if len(self._blocks) > 1 else "1"
        if self._stock:
            of_blocks = f"spread {hashlib.sha256(self._stock.labels.tobytes()).hexdigest()}"
        described = f"{self.seed} {of_blocks} ".encode() + self._blocks.tobytes()
        return hashlib.sha256(described).hexdigest()[:16]

    def steps(self, position: int = 0) -> int:
        """Return the steps left in an epoch after `position` examples."""
        return math.ceil((self.examples - position) / self.step_size)

    def order(self, epoch: int) -> Order:
        """Return the epoch's order of all examples, the same on every rank."""
        if self._stock:
            ranks = self.order_ranks(epoch)
            return SpreadOrder(self._blocks, self._stock, seed=self.seed, epoch=epoch, ranks=ranks)
        return Order(self._blocks, seed=self.seed, epoch=epoch, window=self._window)

    def order_ranks(self, epoch: int) -> int:
        """Return the number of ranks that began an epoch, on which the order of a sorted set depends."""
        return self._begun.get(epoch, self._ranks)

    def begun(self, epoch: int, ranks: int) -> None:
        """Go on with an epoch that so many ranks began."""
        self._begun = {epoch: ranks}

    def epoch(self, epoch: int, position: int = 0) -> Iterator[Share]:
        """Yield this rank's shares from the example at `position` on: a resumed run continues exactly there."""
        for step in self.order(epoch).steps(self.step_size, position):
            total = len(step.ids)
            position += total
            ids = step.ids if len(self._blocks) == 1 else step.ids[np.argsort(step.places, kind="stable")]
            each, more = divmod(total, self._ranks)  # The first ranks get one example more.
            first, count = self._rank * each + min(self._rank, more), each + (self._rank < more)
            own = ids[first : first + count] if count else ids[:1]
            yield Share(own, count, total, position)


def slice_of(examples: int, *, rank: int, ranks: int) -> np.ndarray:
    """Return a rank's examples of a pass without common batches, such as a test: consecutive ones.

    Each example has one rank. The ranks' numbers of examples differ by one at most.
    """
    return np.arange(examples * rank // ranks, examples * (rank + 1) // ranks)
