"""What a training reads: examples by number, whether they are in memory or in blocks of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from dtj_trainer.data.mixing import Mixing
    from dtj_trainer.data.pictures import Pictures
    from dtj_trainer.data.spread import Stock


class Examples(Protocol):
    """The examples of a split, numbered from 0.

    `blocks`: int64, the number of examples of each block, in the order of the examples' numbers; their sum is the
    number of all examples. Examples in memory are one block.
    """

    @property
    def blocks(self) -> np.ndarray:
        """The number of examples of each block."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each picture."""

    @property
    def stock(self) -> Stock | None:
        """The labels and sizes of the blocks of a set that is sorted by class, for its order; None for other sets."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def read(self, ids: np.ndarray) -> Pictures:
        """Return the pictures and labels with these numbers, in this order. Several threads may read at once.

        With `skip_corrupt`, an example that can't be read has the label -1 and any pixels.
        Raises DataCorrupt, DataNotFound or DataUnavailable.
        """

    def mixing(self, batch: int, ranks: int) -> Mixing | None:
        """Return how well steps of `ranks` batches mix the classes; None where nobody has counted the labels."""

    def widen(self, times: float) -> None:
        """Raise the memory for blocks to so many times its size, for the rest of an epoch that more ranks began.

        See Sharding.begun.
        """

    def expect(self, ids: Iterator[np.ndarray]) -> None:
        """Announce the batches that `read` will be asked for, in order: the beginning of an epoch, or its rest.

        The numbers are drawn as far ahead as blocks fit the memory. A second call replaces the first one. Examples in
        memory ignore the call.
        """
