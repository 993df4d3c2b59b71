"""The order of an epoch's examples: runs of blocks first, then the examples of a few runs at a time.

A data set is a sequence of blocks of consecutive examples. An epoch permutes runs of RUN neighbouring blocks, cuts
the permuted runs into windows of `window` blocks, and permutes the examples of each window. Everything follows from
seed and epoch. At any time a reader therefore needs the blocks of a window or two, and memory grows with blocks, not
with examples. A set of one block, such as examples in memory, is permuted as a whole.

Runs are there for the store: one request brings the blocks of a run. Requests of 1 MiB cost a store up to three times
as much for each byte as requests of 4 MiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW = 64
"""Blocks whose examples are mixed: with blocks of 1 MiB, 64 MiB as stored, of which a reader holds two."""

RUN = 4
"""Neighbouring blocks that stay together: with blocks of 1 MiB, requests of 4 MiB."""


class Part(NamedTuple):
    """Consecutive examples of an order: their numbers, and the place of each one's block in the order of blocks."""

    ids: np.ndarray
    places: np.ndarray


class Order:
    """The order of the examples of one epoch. `blocks`: int64, the examples of each block, by number of the block."""

    def __init__(self, blocks: np.ndarray, *, seed: int, epoch: int, window: int = WINDOW) -> None:
        self._blocks, self._seed, self._epoch = blocks, seed, epoch
        self._starts = np.cumsum(blocks) - blocks
        # A window draws its order from the seed [seed, epoch, window]. NumPy ignores a trailing zero: a set of one
        # block (window 0) has the same order as in releases without blocks, and their checkpoints resume exactly.
        run = min(RUN, window)
        runs = np.random.default_rng([seed, epoch, 0, 1]).permutation(-(-len(blocks) // run))
        permuted = (runs[:, None] * run + np.arange(run)).ravel()
        self._permuted = permuted[permuted < len(blocks)]
        # The set's last run may be shorter than the others, and may be at any place in the order.
        run_ends = np.cumsum(np.minimum(run, len(blocks) - runs * run))
        self._borders = np.concatenate(([0], run_ends[window // run - 1 : -1 : window // run], run_ends[-1:]))
        ends = np.cumsum(blocks[self._permuted])
        self._ends = ends[self._borders[1:] - 1]

    def __len__(self) -> int:
        """Return the number of examples."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def windows(self, position: int = 0) -> Iterator[Part]:
        """Yield the order from the example at `position` on, in parts of at most a window."""
        first = int(np.searchsorted(self._ends, position, side="right"))
        for window in range(first, len(self._ends)):
            whole = self._of(window)
            skipped = position - int(self._ends[window]) + len(whole.ids)
            yield Part(*(each[skipped:] for each in whole)) if skipped > 0 else whole

    def steps(self, size: int, position: int = 0) -> Iterator[Part]:
        """Yield the order from the example at `position` on, in parts of `size`; the last part may be smaller."""
        held: list[Part] = []
        count = 0
        for part in self.windows(position):
            held.append(part)
            count += len(part.ids)
            if count < size:
                continue
            joined = _join(held)
            whole = count - count % size
            for start in range(0, whole, size):
                yield Part(*(each[start : start + size] for each in joined))
            held, count = [Part(*(each[whole:] for each in joined))], count - whole
        if count:
            yield _join(held)

    def blocks_ahead(self, position: int) -> np.ndarray:
        """Return the blocks of two windows, in their order: that of the example at `position`, and the next one."""
        first = int(np.searchsorted(self._ends, position, side="right"))
        borders = self._borders[[min(first, len(self._ends)), min(first + 2, len(self._ends))]]
        return self._permuted[slice(*borders)]

    def _of(self, window: int) -> Part:
        places = np.arange(self._borders[window], self._borders[window + 1])
        blocks = self._permuted[places]
        sizes = self._blocks[blocks]
        ends = np.cumsum(sizes)
        ids = np.repeat(self._starts[blocks] - (ends - sizes), sizes) + np.arange(ends[-1])
        mixed = np.random.default_rng([self._seed, self._epoch, window]).permutation(len(ids))
        return Part(ids[mixed], np.repeat(places, sizes)[mixed])


def _join(parts: list[Part]) -> Part:
    return Part(*(np.concatenate(each) for each in zip(*parts, strict=True)))
