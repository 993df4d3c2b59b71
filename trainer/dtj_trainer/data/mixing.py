"""How well a set's order mixes its classes: those in a step and in a rank's batch, beside a true shuffle's."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dtj_trainer.data.sharding import Sharding
from dtj_trainer.data.spread import Stock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtj_trainer.data.index import DataIndex, SplitIndex
    from dtj_trainer.data.label_counts import LabelCounts

GOOD_SHARE = 0.95
"""An order is good if its steps and batches have this share of the bits (entropy of classes) of a true shuffle's.
With less, accuracy suffers."""
_STEPS = 16
"""How many steps in the middle of an epoch are examined."""
_EXAMPLES = 1 << 18
"""The most examples in the steps that are examined."""
_BATCH, _RANKS = 64, 4
"""The batch size and the number of ranks for which a set is judged before a training is known."""


def sentence_of(index: DataIndex) -> str:
    """Return a sentence on how well the order of a set mixes its classes, with _RANKS ranks of _BATCH examples."""
    found = mixing_of(index.splits["train"])
    if found is None:
        return (
            "the index, of an earlier release, has no counts of labels: remove it, and "
            "`dtj data stage` writes another one, which tells whether the set is sorted by class"
        )
    kind = "sorted by class" if is_sorted(index.splits["train"]) else "shuffled"
    said = f"the shards are {kind}; with {_RANKS} ranks of {_BATCH} examples, {found.sentence()}"
    return (
        said
        if found.share >= GOOD_SHARE
        else f"{said}: `dtj data stage SRC DST` writes them in a random order"
    )


def is_sorted(split: SplitIndex) -> bool:
    """Return whether a split is known to be sorted by class."""
    counts = split.label_counts()
    return counts is not None and counts.is_sorted()


class Mixed(NamedTuple):
    """Of an order: the mean entropy in bits and the mean number of classes of a step, and of a rank's batch."""

    step_bits: float
    step_classes: float
    batch_bits: float
    batch_classes: float


class Mixing(NamedTuple):
    """What an order gives, and what a true shuffle of the same examples would give."""

    order: Mixed
    shuffle: Mixed

    @property
    def share(self) -> float:
        """The smaller share of a true shuffle's bits that a step or a rank's batch has."""
        pairs = (
            (self.order.step_bits, self.shuffle.step_bits),
            (self.order.batch_bits, self.shuffle.batch_bits),
        )
        return min((found / true if true else 1.0 for found, true in pairs), default=1.0)

    def sentence(self) -> str:
        """Return a sentence with the numbers of classes in a step and in a rank's batch."""
        order, shuffle = self.order, self.shuffle
        return (
            f"a step has {order.step_classes:.0f} classes (in a true shuffle {shuffle.step_classes:.0f}), and a "
            f"rank's batch has {order.batch_classes:.0f} (in a true shuffle {shuffle.batch_classes:.0f}), with "
            f"{self.share:.0%} of a true shuffle's entropy"
        )


def mixing_of(split: SplitIndex, batch: int = _BATCH, ranks: int = _RANKS) -> Mixing | None:
    """Return the mixing of a split in steps of `ranks` batches; None where the index has no counts of labels."""
    counts = split.label_counts()
    if counts is None:
        return None
    sizes = np.array([block.length for block in split.blocks])
    return mixing(counts, sizes, batch, ranks)


def mixing(counts: LabelCounts, sizes: np.ndarray, batch: int, ranks: int) -> Mixing:
    """Return the mixing of a set with these counts. `sizes`: the bytes of each block."""
    labels = counts.of_examples()
    blocks = np.bincount(counts.blocks, weights=counts.counts, minlength=len(counts.distinct)).astype(
        np.int64
    )
    batch = max(min(batch, len(labels) // ranks), 1)
    stock = Stock(counts.commonest(), sizes) if counts.is_sorted() else None
    shards = [Sharding(blocks, batch, rank=rank, ranks=ranks, seed=1, stock=stock) for rank in {0, ranks - 1}]
    middle = len(labels) // 2 // (batch * ranks) * (batch * ranks)
    number = max(min(_STEPS, _EXAMPLES // (batch * ranks)), 1)
    of_order = shards[0].order(0).steps(batch * ranks, middle)
    steps = [labels[step.ids] for step in islice(of_order, number)]
    batches = [labels[share.indices] for each in shards for share in islice(each.epoch(0, middle), number)]
    chance = np.random.default_rng(1)
    true = [labels[chance.choice(len(labels), len(step), replace=False)] for step in steps]
    cut = [step[: len(part)] for step, part in zip(true, batches, strict=False)]
    return Mixing(Mixed(*_mean(steps), *_mean(batches)), Mixed(*_mean(true), *_mean(cut)))


def _mean(parts: list[np.ndarray]) -> Iterator[float]:
    counted = [np.unique(part, return_counts=True)[1] for part in parts]
    yield float(
        np.mean([-(counts / counts.sum() * np.log2(counts / counts.sum())).sum() for counts in counted])
    )
    yield float(np.mean([len(counts) for counts in counted]))
