"""The order of an epoch of a set that is sorted by class: blocks of all classes are open at any time.

A run of RUN neighbouring blocks is what one request brings. The runs of each class are spread evenly over the epoch,
in an order that seed and epoch decide. Each run is open for a window of the epoch, in which its examples come at even
distances: a step has about as many of each open run. The runs are dealt to lanes, those of each class in turn, and
each step takes about as many examples of each lane. A rank's share of a step is cut along the lanes, so that a rank
reads the runs of its own lanes alone.

The window takes as many runs as the memory of all ranks allows that begin the epoch. A position in the order belongs
to this number of ranks, which a checkpoint has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dtj_trainer.data.order import Order, Part

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = 2
"""Neighbouring blocks that stay together. With longer runs, fewer classes would fit into the same memory."""
LANES = 16
"""Lanes of each rank. More lanes mean fewer blocks that are read twice if another number of ranks continues the
epoch."""
_OPEN_BYTES = 208 << 20
"""The most bytes of open runs on a rank: `stored_examples.MEMORY_BYTES` without the runs that are read ahead."""
_HALF = 8
"""Half a window, in groups of runs that open together."""
_OPEN_EXAMPLES = 1 << 20
"""The most examples of open runs, whose numbers each rank keeps in memory."""
_GOLDEN = 0.6180339887498949


class Stock(NamedTuple):
    """What determines the order of a sorted set: of each block, its most frequent label and its bytes."""

    labels: np.ndarray
    sizes: np.ndarray


class SpreadOrder(Order):
    """See Order. `places` of a Part are lanes."""

    def __init__(self, blocks: np.ndarray, stock: Stock, *, seed: int, epoch: int, ranks: int) -> None:
        self._blocks, self._seed, self._epoch = blocks, seed, epoch
        self._starts = np.cumsum(blocks) - blocks
        firsts = np.arange(0, len(blocks), RUN)
        self._sizes = np.add.reduceat(blocks, firsts)
        self._runs, self._lanes = _spread(stock.labels[firsts], seed, epoch, ranks)
        self._lanes_count = LANES * ranks
        self._group, self._half = self._groups(int(stock.sizes.sum()), ranks)
        self._count = -(-len(self._runs) // self._group)
        first_runs = np.arange(0, len(self._runs), self._group)
        self._totals = np.add.reduceat(self._sizes[self._runs], first_runs)
        self._drawn: dict[int, list[_Drawn]] = {}

    def __len__(self) -> int:
        """Return the number of examples."""
        return int(self._blocks.sum())

    def windows(self, position: int = 0) -> Iterator[Part]:
        """See Order. A part is what comes while the same runs are open."""
        chunk, before = self._chunk_of(position)
        for each in range(chunk, self._count):
            whole = self._chunk(each)
            skipped = max(position - before, 0)
            before += len(whole.ids)
            if skipped < len(whole.ids):
                yield Part(*(found[skipped:] for found in whole))

    def blocks_ahead(self, position: int) -> np.ndarray:
        """Return the blocks of the runs that are open at `position`, and of those that open next."""
        chunk, _ = self._chunk_of(min(position, len(self) - 1))
        groups = slice(max(chunk - self._half, 0) * self._group, (chunk + self._half + 2) * self._group)
        found = (self._runs[groups, None] * RUN + np.arange(RUN)).ravel()
        return found[found < len(self._blocks)]

    def _groups(self, total_bytes: int, ranks: int) -> tuple[int, int]:
        """Return how many runs make a group, which opens together, and how many groups make half a window."""
        runs = len(self._runs)
        open_runs = min(
            _OPEN_BYTES * ranks * runs // max(total_bytes, 1),
            _OPEN_EXAMPLES * runs // max(len(self), 1),
        )
        if open_runs >= runs:
            return runs, 0
        half = min(_HALF, max(open_runs // 2 - 1, 1))
        return max(open_runs // (2 * half + 1), 1), half

    def _chunk_of(self, position: int) -> tuple[int, int]:
        """Return the chunk with the example at `position`, and the examples before that chunk."""
        closed = np.concatenate(([0], np.cumsum(self._totals)))
        low, high = 0, self._count - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._before(middle, closed) <= position:
                low = middle
            else:
                high = middle - 1
        return low, self._before(low, closed)

    def _before(self, chunk: int, closed: np.ndarray) -> int:
        """Return how many examples of the epoch come before a chunk; see `_opens`."""
        first = max(chunk - self._half, 0)
        open_groups = range(first, min(chunk + self._half, self._count))
        counts = (
            len(drawn.ids)
            for group in open_groups
            for drawn in self._draw(group)[: chunk - self._opens(group)]
        )
        return int(closed[first]) + sum(counts)

    def _opens(self, group: int) -> int:
        """Return the first chunk (a part of the epoch in which the same runs are open) with examples of a group of
        runs.
        """
        return max(group - self._half, 0)

    def _chunk(self, chunk: int) -> Part:
        """Return the examples of a chunk with the lanes mixed evenly, and those of each lane in the order of their
        keys.
        """
        groups = range(max(chunk - self._half, 0), min(chunk + self._half + 1, self._count))
        for closed in self._drawn.keys() - set(groups):
            del self._drawn[closed]
        drawn = [self._draw(group)[chunk - self._opens(group)] for group in groups]
        ids, lanes, keys = (np.concatenate(each) for each in zip(*drawn, strict=True))
        order = np.lexsort((keys, lanes))
        counts = np.bincount(lanes, minlength=self._lanes_count)
        place = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
        phase = (chunk + np.arange(self._lanes_count)) * _GOLDEN % 1
        even = (place + np.repeat(phase, counts)) / np.repeat(counts, counts)
        mixed = order[np.argsort(even, kind="stable")]
        return Part(ids[mixed], lanes[mixed])

    def _draw(self, group: int) -> list[_Drawn]:
        """Return the examples of a group's runs for each chunk in which the group is open."""
        if group in self._drawn:
            return self._drawn[group]
        places = np.arange(group * self._group, min((group + 1) * self._group, len(self._runs)))
        runs = self._runs[places]
        sizes = self._sizes[runs]
        ends = np.cumsum(sizes)
        run_of = np.repeat(np.arange(len(runs)), sizes)
        ids = np.repeat(self._starts[runs * RUN] - (ends - sizes), sizes) + np.arange(sizes.sum())
        chance = np.random.default_rng([self._seed, self._epoch, group, 3])
        # Spread the examples of a run at even distances in a random order. Move each at random by up to one distance.
        shuffled = np.lexsort((chance.random(len(ids)), run_of))
        nth = np.arange(len(ids)) - np.repeat(ends - sizes, sizes)
        opens, closes = self._opens(group), min(group + self._half + 1, self._count)
        keys = (nth + chance.random(len(ids))) / np.repeat(sizes, sizes) * (closes - opens)
        order = np.argsort(keys, kind="stable")
        borders = np.searchsorted(keys[order], np.arange(1, closes - opens))
        arrays = (ids[shuffled], self._lanes[places][run_of], keys)
        split = ([*np.split(array[order], borders)] for array in arrays)
        self._drawn[group] = [_Drawn(*each) for each in zip(*split, strict=True)]
        return self._drawn[group]


class _Drawn(NamedTuple):
    ids: np.ndarray
    lanes: np.ndarray
    keys: np.ndarray


def _spread(labels: np.ndarray, seed: int, epoch: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the runs of blocks in the order in which they open, and the lane of each: see the module."""
    chance = np.random.default_rng([seed, epoch, 0, 2])
    shuffled = chance.permutation(len(labels))
    _, classes = np.unique(labels, return_inverse=True)
    classes = chance.permutation(classes.max() + 1)[classes]
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    counts = np.bincount(classes)
    nth = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    when = (nth + np.repeat(chance.random(len(counts)), counts)) / np.repeat(counts, counts)
    order = np.argsort(when, kind="stable")
    # Deal the runs to the lanes of all ranks in turn, so that the runs of one class go to different ranks.
    dealt = np.arange(len(labels))
    lanes = dealt % ranks * LANES + dealt // ranks % LANES
    return by_class[order], lanes[order]
