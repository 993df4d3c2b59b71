"""How many examples of each label each block has: what tells whether a set is sorted by class.

An index keeps the counts as text: base64 of zlib of three columns of uint32, each by planes of bytes, so that a
shuffled set of a million pictures needs some megabytes less than a list of numbers would.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MAX_BYTES = 128 << 20
"""Limit of the counts of a split, unpacked. The index of a larger split has none."""
SORTED_SHARE = 0.03
"""A set counts as sorted when the share of pairs of neighbouring examples with one class exceeds the share by chance
by more than this."""
NEIGHBOURS = 4
"""The number of neighbouring blocks that the order of a shuffled set keeps together: `order.RUN`."""


@dataclass(frozen=True)
class LabelCounts:
    """`distinct`: of each block, the number of its labels. `labels` and `counts`: of all blocks, one after another.

    The labels of a block ascend.
    """

    distinct: np.ndarray
    labels: np.ndarray
    counts: np.ndarray

    @property
    def blocks(self) -> np.ndarray:
        """The block of each item of `labels`."""
        return np.repeat(np.arange(len(self.distinct)), self.distinct)

    def commonest(self) -> np.ndarray:
        """Return the most frequent label of each block; the lowest of several."""
        order = np.lexsort((self.labels, -self.counts, self.blocks))
        starts = np.cumsum(self.distinct) - self.distinct
        return np.asarray(self.labels[order][starts])

    def of_examples(self) -> np.ndarray:
        """Return a label for each example. The labels of each block are right, and in an unknown order."""
        return np.repeat(self.labels, self.counts)

    def is_sorted(self) -> bool:
        """Return whether neighbours have one class clearly more often than in a shuffled set."""
        total = int(self.counts.sum())
        classes = np.bincount(self.labels, weights=self.counts)
        by_chance = _pairs(classes) / max(_pairs(np.array([total])), 1)
        width = int(self.labels.max(initial=0)) + 1
        keys, at = np.unique(self.blocks // NEIGHBOURS * width + self.labels, return_inverse=True)
        joined = np.bincount(at, weights=self.counts)
        among = _pairs(np.bincount(keys // width, weights=joined))
        if not among or by_chance >= 1:
            return False
        share = (_pairs(joined) / among - by_chance) / (1 - by_chance)
        noise = 4 * np.sqrt(by_chance / among / (1 - by_chance))
        return bool(share > SORTED_SHARE + noise)

    def text(self) -> str | None:
        """Return the counts as an index keeps them; None above MAX_BYTES."""
        columns = np.concatenate([self.distinct, self.labels, self.counts]).astype("<u4")
        if columns.nbytes > MAX_BYTES:
            return None
        planes = columns.view(np.uint8).reshape(-1, 4).T
        return base64.b64encode(zlib.compress(np.ascontiguousarray(planes).tobytes(), 6)).decode()


def counts_of(histograms: Sequence[Mapping[int, int]]) -> LabelCounts:
    """Return the counts of blocks, each with its number of examples by label."""
    items = [sorted(histogram.items()) for histogram in histograms]
    flat = np.array([item for block in items for item in block], np.int64).reshape(-1, 2)
    return LabelCounts(np.array([len(block) for block in items], np.int64), flat[:, 0], flat[:, 1])


def from_text(text: str, examples: np.ndarray, classes: int) -> LabelCounts:
    """Read counts back. `examples`: of each block. Raises ValueError, which says what is wrong."""
    most = min((len(examples) + 2 * int(examples.sum())) * 4, MAX_BYTES)
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(text, validate=True), most + 1)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"is not zlib data in base64: {error}") from error
    if len(content) > most:
        raise ValueError("has more counts than the blocks have examples")
    if len(content) % 4 or not unpacker.eof:
        raise ValueError("is cut off")
    columns = np.frombuffer(content, np.uint8).reshape(4, -1).T.copy().view("<u4").ravel().astype(np.int64)
    distinct, rest = columns[: len(examples)], columns[len(examples) :]
    if len(rest) != 2 * distinct.sum():
        raise ValueError(
            f"has {len(rest)} labels and counts, where its first column asks for {2 * distinct.sum()}"
        )
    counts = LabelCounts(distinct, *np.split(rest, 2))
    ascending = (np.diff(counts.labels) > 0) | (np.diff(counts.blocks) > 0)
    sums = np.bincount(counts.blocks, weights=counts.counts, minlength=len(examples))
    if not np.array_equal(sums, examples):
        raise ValueError("counts other numbers of examples than the blocks have")
    if not ascending.all():
        raise ValueError("has labels of a block that do not ascend")
    if not (counts.counts > 0).all():
        raise ValueError("counts 0 examples of a label")
    if counts.labels.max(initial=0) >= classes:
        raise ValueError(f"has the label {counts.labels.max()}, and there are {classes} classes")
    return counts


def _pairs(counts: np.ndarray) -> float:
    return float((counts * (counts - 1.0)).sum() / 2)
