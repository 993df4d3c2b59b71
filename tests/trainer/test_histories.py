"""Exactly once in any world: trainings whose ranks are killed and come back in another number, by the real loader.

A history is a training of a few epochs. Each attempt has 1 to 8 ranks, its own number of threads, and ends by a kill
after some steps, or never. What was done since the last checkpoint is lost. Each rank of each attempt opens the set
anew. The pixels and the label of an example tell which of the written examples it is. `make test-histories` plays
1,000 histories of each kind of data set, `make test` 50 in all.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from tests.trainer.conftest import ObjectStore
from tests.trainer.example_sets import SETS
from tests.trainer.format_sets import FORMAT_SETS, SIZES

from dtj_trainer import contract
from dtj_trainer.artifacts import s3
from dtj_trainer.data import dataset, ranged, sources, stored_examples
from dtj_trainer.data.examples import Examples
from dtj_trainer.data.formats.images import PictureForm, pixels_of
from dtj_trainer.data.order import Order
from dtj_trainer.data.pictures import Pictures
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.train import batches as loader
from dtj_trainer.train.augment import shift_and_flip
from dtj_trainer.train.batches import Batch, Batches, picture_batches
from dtj_trainer.train.seeds import chances_of

KINDS = (*SETS, *FORMAT_SETS)
HISTORIES = int(os.environ.get("DTJ_HISTORIES") or 50 // len(KINDS))
SEED = int(os.environ.get("DTJ_SEED", "20261121"))
EPOCHS = 3

Arrays = tuple[np.ndarray, np.ndarray]
Step = tuple[int, list[int]]
"""The position before a step, and the numbers of its examples as they were written."""


class WrittenSet(Protocol):
    """A set of pictures as they were given to its writer: no two are the same."""

    @property
    def pixels(self) -> np.ndarray: ...

    @property
    def labels(self) -> np.ndarray: ...

    def opened(self, window: int) -> AbstractContextManager[Examples]:
        """Open the set as a rank does."""


@dataclass(frozen=True)
class InMemory:
    """See WrittenSet: one that no file holds."""

    kind: str
    count: int

    @functools.cached_property
    def _whole(self) -> Pictures:
        return SETS["memory"](self.count).read(np.arange(self.count))

    @property
    def pixels(self) -> np.ndarray:
        return self._whole.pixels

    @property
    def labels(self) -> np.ndarray:
        return self._whole.labels

    @contextmanager
    def opened(self, window: int) -> Iterator[Examples]:
        del window
        yield SETS[self.kind](self.count)


@dataclass
class History:
    """A training, and the steps of it that survived, by epoch."""

    written: WrittenSet
    seed: int
    batch: int
    step_size: int | None
    augment: bool
    window: int
    at: tuple[int, int] = (0, 0)
    steps: dict[int, list[Step]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        as_written = self._numbers(self.written.pixels)
        with self.written.opened(self.window) as examples:
            self.blocks, every = examples.blocks, np.arange(len(examples))
            examples.expect(iter([every]))
            self.places = [as_written[key] for key in _keys(examples.read(every))]
        """The number, as it was written, of each example in the reader's order."""
        assert sorted(self.places) == list(range(len(self.written.labels)))
        self.numbers_in = functools.cache(self._numbers_in)

    def attempt(self, chance: np.random.Generator) -> None:
        """Train from the last checkpoint on, until a kill or to the end of the epoch."""
        epoch, position = self.at
        ranks, workers, every = (int(chance.integers(low, high)) for low, high in ((1, 9), (0, 3), (1, 6)))
        steps_left = 1 + (len(self.places) - position) // (self.step_size or self.batch * ranks)
        killed_after = int(chance.integers(0, steps_left)) if chance.random() < 0.7 else None
        unsaved: list[Step] = []
        with ExitStack() as held:
            opened = [held.enter_context(self.written.opened(self.window)) for _ in range(ranks)]
            running = [
                self._batches(examples, rank, ranks, workers).epoch(epoch, position)
                for rank, examples in enumerate(opened)
            ]
            for each in running:
                held.callback(each.close)  # type: ignore[attr-defined]
            for number, step in enumerate(zip(*running, strict=True)):
                if number == killed_after:
                    break
                unsaved.append(self._checked(epoch, position, step))
                position = step[0].share.position
                if (number + 1) % every == 0 or position == len(self.places):
                    self.steps.setdefault(epoch, []).extend(unsaved)
                    unsaved.clear()
                    self.at = (epoch, position) if position < len(self.places) else (epoch + 1, 0)

    def _batches(self, examples: Examples, rank: int, ranks: int, workers: int) -> Batches[Arrays]:
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
        numbers, found = self.numbers_in(epoch), list[int]()
        for batch in step:
            pixels, labels = (each[: batch.share.count] for each in batch.data)
            found += [numbers[key] for key in _keys(Pictures(pixels, labels))]
        return position, found

    def _numbers_in(self, epoch: int) -> dict[tuple[bytes, int], int]:
        """Return the numbers of the examples by what one process would have of them in an epoch."""
        pixels = self.written.pixels
        if self.augment:
            augmented, every = np.empty_like(pixels), np.arange(len(pixels))
            augmented[self.places] = shift_and_flip(pixels[self.places], chances_of(self.seed, epoch, every))
            pixels = augmented
        return self._numbers(pixels)

    def _numbers(self, pixels: np.ndarray) -> dict[tuple[bytes, int], int]:
        numbers = {key: number for number, key in enumerate(_keys(Pictures(pixels, self.written.labels)))}
        assert len(numbers) == len(pixels), "two examples are the same"
        return numbers


def _keys(pictures: Pictures) -> list[tuple[bytes, int]]:
    labels = pictures.labels.tolist()
    return [(each.tobytes(), label) for each, label in zip(pictures.pixels, labels, strict=True)]


@pytest.fixture(scope="session")
def written_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written-sets")


@pytest.fixture
def one_client(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks share a client of S3. Boto needs up to 0.1 s to make one, and a history opens dozens of sets."""
    client = s3.make_client()
    for module in (s3, ranged, sources):
        monkeypatch.setattr(module, "make_client", lambda *_: client)


@pytest.fixture
def decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All histories have the same pictures, whose bytes are read anew each time. Decoding took half of the time."""
    kept: dict[tuple[bytes, PictureForm], np.ndarray] = {}

    def once(picture: Any, form: PictureForm, *, where: str) -> np.ndarray:
        if isinstance(picture, np.ndarray):
            return pixels_of(picture, form, where=where)
        key = bytes(picture), form
        if key not in kept:
            kept[key] = pixels_of(picture, form, where=where)
            kept[key].setflags(write=False)
        return kept[key]

    for module in (dataset, stored_examples):
        monkeypatch.setattr(module, "pixels_of", once)


needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow, which writes the files"
)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[needs_tensorflow] * (kind == "tfrecord")) for kind in KINDS]
)
def test_each_example_counts_once_an_epoch_in_any_history(
    kind: str,
    written_sets: Path,
    one_client: None,
    decoded_once: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader, "IN_LINE_BYTES", 0)
    monkeypatch.setenv(contract.ENV_ROOT, str(tmp_path))
    monkeypatch.setenv(contract.ENV_UID, "8c2f")
    attempts = 0
    for number in range(HISTORIES):
        chance = np.random.default_rng([SEED, KINDS.index(kind), number])
        count, seed, batch, window = (int(chance.integers(1, high)) for high in (150, 2**40, 9, 6))
        step_size = int(chance.integers(1, 50)) if chance.random() < 0.5 else None
        augment = chance.random() < 0.5
        written: WrittenSet = (
            FORMAT_SETS[kind].make(written_sets / kind, number, SIZES[count % len(SIZES)])
            if kind in FORMAT_SETS
            else InMemory(kind, count)
        )
        history = History(written, seed, batch, step_size, augment, window)
        while history.at[0] < EPOCHS:
            monkeypatch.setenv(contract.ENV_ATTEMPT, str(attempts + 1))
            history.attempt(chance)
            attempts += 1
            assert attempts < 1000 * (number + 1), "a training does not end"
        for epoch in range(EPOCHS):
            order = Order(history.blocks, seed=seed, epoch=epoch, window=window)
            ids = np.concatenate([part.ids for part in order.windows()])
            expected = [history.places[id_] for id_ in ids]
            assert sorted(expected) == list(range(len(written.labels))), f"history {number}"
            done = 0
            for position, found in history.steps[epoch]:
                assert position == done, f"history {number}: a step began elsewhere"
                done += len(found)
                assert sorted(found) == sorted(expected[position:done]), f"history {number}"
            assert done == len(written.labels), f"history {number}"
    assert attempts > EPOCHS * HISTORIES, "nobody was killed"
