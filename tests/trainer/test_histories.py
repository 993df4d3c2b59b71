"""Exactly once in any world: trainings whose ranks are killed and come back in another number, by the real loader.

A history is a training of a few epochs. Each attempt has 1 to 8 ranks, its own number of threads, and ends by a kill
after some steps, or never. What was done since the last checkpoint is lost. `make test-histories` plays 1,000
histories of each kind of data set, `make test` 50 in all.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.trainer.example_sets import SETS

from dtj_trainer.data.examples import Examples
from dtj_trainer.data.order import Order
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.train import batches as loader
from dtj_trainer.train.augment import shift_and_flip
from dtj_trainer.train.batches import Batch, Batches, picture_batches
from dtj_trainer.train.chance import chances_of

HISTORIES = int(os.environ.get("DTJ_HISTORIES") or 50 // len(SETS))
SEED = int(os.environ.get("DTJ_SEED", "20261121"))

Arrays = tuple[np.ndarray, np.ndarray]
Step = tuple[int, np.ndarray]
"""The position before a step, and its examples."""


@dataclass
class History:
    """A training, and the steps of it that survived, by epoch. `make` opens the data set, as each rank does."""

    make: Callable[[], Examples]
    seed: int
    batch: int
    step_size: int | None
    augment: bool
    window: int
    at: tuple[int, int] = (0, 0)
    steps: dict[int, list[Step]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.examples = self.make()
        self.alone = functools.cache(self._alone)

    def attempt(self, chance: np.random.Generator) -> None:
        """Train from the last checkpoint on, until a kill or to the end of the epoch."""
        epoch, position = self.at
        ranks, workers, every = (int(chance.integers(low, high)) for low, high in ((1, 9), (0, 3), (1, 6)))
        killed_after = int(chance.integers(0, 12)) if chance.random() < 0.7 else None
        unsaved: list[Step] = []
        running = [self._rank(rank, ranks, workers).epoch(epoch, position) for rank in range(ranks)]
        for number, step in enumerate(zip(*running, strict=True)):
            if number == killed_after:
                break
            unsaved.append(self._checked(epoch, position, step))
            position = step[0].share.position
            if (number + 1) % every == 0 or position == len(self.examples):
                self.steps.setdefault(epoch, []).extend(unsaved)
                unsaved.clear()
                self.at = (epoch, position) if position < len(self.examples) else (epoch + 1, 0)
        for each in running:
            each.close()  # type: ignore[attr-defined]

    def _rank(self, rank: int, ranks: int, workers: int) -> Batches[Arrays]:
        examples = self.make()
        sharding = Sharding(
            *(examples.blocks, self.batch),
            **{"rank": rank, "ranks": ranks, "seed": self.seed},
            step_size=self.step_size,
            window=self.window,
        )
        return picture_batches(
            *(examples, sharding, lambda pixels, labels: (pixels, labels)),
            **{"workers": workers, "augment": self.augment, "seed": self.seed},  # type: ignore[arg-type]
        )

    def _checked(self, epoch: int, position: int, step: tuple[Batch[Arrays], ...]) -> Step:
        """The ranks agree on the step, and have the pixels that one process would have."""
        counts = [batch.share.count for batch in step]
        assert {batch.share.total for batch in step} == {sum(counts)}
        assert {batch.share.position for batch in step} == {position + sum(counts)}
        assert max(counts) - min(counts) <= 1
        ids = np.concatenate([batch.share.indices[: batch.share.count] for batch in step])
        for place in range(2):
            found = np.concatenate([batch.data[place][: batch.share.count] for batch in step])
            np.testing.assert_array_equal(found, self.alone(epoch)[place][ids])
        return position, ids

    def _alone(self, epoch: int) -> Arrays:
        """Pixels and labels of all examples, by number, as an epoch has them."""
        every = np.arange(len(self.examples))
        self.examples.expect(iter([every]))
        pictures = self.examples.read(every)
        if not self.augment:
            return pictures.pixels, pictures.labels
        return shift_and_flip(pictures.pixels, chances_of(self.seed, epoch, every)), pictures.labels


@pytest.mark.parametrize("kind", SETS)
def test_each_example_counts_once_an_epoch_in_any_history(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "IN_LINE_BYTES", 0)
    attempts = 0
    for number in range(HISTORIES):
        chance = np.random.default_rng([SEED, number])
        count, seed, batch, window = (int(chance.integers(1, high)) for high in (150, 2**40, 9, 6))
        step_size = int(chance.integers(1, 50)) if chance.random() < 0.5 else None
        augment = chance.random() < 0.5
        history = History(functools.partial(SETS[kind], count), seed, batch, step_size, augment, window)
        while history.at[0] < 3:
            history.attempt(chance)
            attempts += 1
            assert attempts < 1000 * (number + 1), "a training does not end"
        for epoch in range(3):
            order = Order(history.examples.blocks, seed=seed, epoch=epoch, window=window)
            expected = np.concatenate([part.ids for part in order.windows()])
            assert sorted(expected) == list(range(count)), f"history {number}"
            done = 0
            for position, ids in history.steps[epoch]:
                assert position == done, f"history {number}: a step began elsewhere"
                done += len(ids)
                assert sorted(ids) == sorted(expected[position:done]), f"history {number}"
            assert done == count, f"history {number}"
    assert attempts > 3 * HISTORIES, "nobody was killed"
