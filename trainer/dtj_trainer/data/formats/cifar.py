"""CIFAR-10 and CIFAR-100 in their binary form (https://www.cs.toronto.edu/~kriz/cifar.html).

Records of a label (CIFAR-100: coarse label, fine label) and 3,072 bytes: the rows of red, of green and of blue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.formats.format import Cut, Example
from dtj_trainer.data.index import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class BinaryCifar:
    """One of the two sets. See Format. `label_bytes`: bytes before the pixels, of which the last is the label."""

    name: str
    classes: int
    label_bytes: int

    def blocks(self, shard: BinaryIO, size: int, *, where: str) -> Iterator[Cut]:
        """See Format."""
        del shard  # Records have one length.
        count = self._count(size, where)
        length = self.label_bytes + PIXELS
        most = -(-BLOCK_BYTES // length)
        for start in range(0, count, most):
            examples = min(most, count - start)
            yield Cut(start * length, examples * length, examples)

    def examples(self, content: bytes | memoryview, *, where: str) -> Iterator[Example]:
        """See Format."""
        pixels, labels = self.arrays(content, where=where)
        yield from map(Example, pixels, labels.tolist())

    def arrays(self, content: bytes | memoryview, *, where: str) -> tuple[np.ndarray, np.ndarray]:
        """Return pixels, uint8, (examples, 3, 32, 32), and labels, int64, without a copy of the pixels."""
        count = self._count(len(content), where)
        records = np.frombuffer(content, np.uint8).reshape(count, self.label_bytes + PIXELS)
        labels = records[:, self.label_bytes - 1].astype(np.int64)
        check_labels(labels, self.classes, where=where)
        return records[:, self.label_bytes :].reshape(count, *SHAPE), labels

    def _count(self, size: int, where: str) -> int:
        count, rest = divmod(size, self.label_bytes + PIXELS)
        if rest or not count:
            raise DataCorrupt(
                f"{where} has {size} bytes, {rest} more than {count} records of {self.label_bytes + PIXELS} bytes: "
                f"it is cut off, or is not {self.name}'s binary form"
            )
        return count


CIFAR10 = BinaryCifar("cifar10", classes=10, label_bytes=1)
CIFAR100 = BinaryCifar("cifar100", classes=100, label_bytes=2)


def check_labels(labels: np.ndarray, classes: int, *, where: str) -> None:
    """Raise DataCorrupt for a label that is not in 0 to `classes` - 1. The message names the example's number."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise DataCorrupt(
            f"{where}, example {wrong[0]}: label {labels[wrong[0]]}, where labels run from 0 to {classes - 1}"
        )
