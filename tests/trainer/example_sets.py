"""Data sets for tests of the order: one of each kind of Examples, with pictures that chance makes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from dtj_trainer.data.examples import Examples
from dtj_trainer.data.pictures import Pictures

SHAPE = (2, 5, 6)


def pictures(count: int) -> Pictures:
    """The label of a picture is its number."""
    pixels = np.random.default_rng(count).integers(0, 256, (count, *SHAPE)).astype("u1")
    return Pictures(pixels, np.arange(count))


class Blocked:
    """Examples in blocks. A batch that was not announced fails the test. `touched`: how often each block was read."""

    shape = SHAPE
    stock = None

    def __init__(self, whole: Pictures, blocks: np.ndarray) -> None:
        self.blocks, self._whole = blocks, whole
        self.touched: Counter[int] = Counter()
        self._coming: Iterator[np.ndarray] = iter(())
        self._announced: list[list[int]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._whole)

    def read(self, ids: np.ndarray) -> Pictures:
        with self._lock:
            while ids.tolist() not in self._announced:
                self._announced.append(next(self._coming).tolist())
            self._announced.remove(ids.tolist())
            self.touched.update(
                np.unique(np.searchsorted(np.cumsum(self.blocks), ids, side="right")).tolist()
            )
        return self._whole.read(ids)

    def mixing(self, batch: int, ranks: int) -> None:
        raise NotImplementedError

    def widen(self, times: float) -> None:
        raise NotImplementedError

    def expect(self, ids: Iterator[np.ndarray]) -> None:
        with self._lock:
            self._coming, self._announced = ids, []


def blocked(count: int) -> Blocked:
    """Blocks of 1 to 12 examples, an empty one among them."""
    chance = np.random.default_rng(count)
    cuts = np.flatnonzero(chance.random(count - 1) < chance.uniform(0.1, 0.9)) + 1
    ends = np.insert(np.append(cuts, count), len(cuts) // 2, 0 if not len(cuts) else cuts[len(cuts) // 2])
    return Blocked(pictures(count), np.diff(np.sort(ends), prepend=0))


SETS: dict[str, Callable[[int], Examples]] = {"memory": pictures, "blocked": blocked}
"""Makes a set of so many examples, by the name of its format."""
