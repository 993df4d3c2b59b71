"""The training loop with threads of this process as ranks, and a model of a few numbers."""

from __future__ import annotations

import json
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.patience import PATIENCE

from dtj_trainer import progress
from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.data.sharding import Share
from dtj_trainer.data.stored_examples import SKIPPED
from dtj_trainer.train import loop as training
from dtj_trainer.train import picture_training
from dtj_trainer.train.file_saver import FileSaver
from dtj_trainer.train.options import TrainingOptions, parse
from dtj_trainer.train.protocols import PictureModel, Ranks, Tested
from dtj_trainer.train.stop import EXIT_CODE

EXAMPLES = 96


class Together:
    """What the ranks exchange: all of them, in the same order, or the test fails."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._given: list[tuple[str, Any]] = [("", None)] * ranks
        self._barrier = threading.Barrier(ranks, timeout=30 * PATIENCE)

    def exchange(self, rank: int, name: str, value: Any) -> list[Any]:
        self._given[rank] = (name, value)
        self._barrier.wait()
        given = list(self._given)
        self._barrier.wait()
        assert {each for each, _ in given} == {name}, f"the ranks do different things: {given}"
        return [value for _, value in given]

    def abort(self) -> None:
        """A rank is gone: the others' exchanges fail."""
        self._barrier.abort()


class ThreadRanks(Ranks):
    """See Ranks: one of them."""

    def __init__(self, together: Together, rank: int) -> None:
        self.rank, self.size, self._together = rank, together.ranks, together

    def exchange(self, name: str, value: Any) -> list[Any]:
        return self._together.exchange(self.rank, name, value)

    def total(self, values: Sequence[float], name: str) -> list[float]:
        return [sum(each) for each in zip(*self.exchange(name, list(values)), strict=True)]

    def broadcast(self, value: Any) -> Any:
        return self.exchange("object", value)[0]

    def gather(self, value: Any, name: str) -> list[Any]:
        return self.exchange(name, value)


class Numbers(PictureModel[np.ndarray], FileSaver):
    """A model and its saver. The weight depends on the examples and rates of all steps, the statistic on the rank."""

    file = "state.zip"
    _ranks: ThreadRanks

    def __init__(self, options: TrainingOptions, ranks: ThreadRanks) -> None:
        FileSaver.__init__(self, options, EXAMPLES, ranks)
        self.rank = ranks.rank
        self.weight, self.statistic = 0.0, 0.0
        self.rates: list[float] = []
        self.steps: list[int] = []
        self.did: list[str] = []
        self.on_test: Callable[[], None] = lambda: None
        self.on_export: Callable[[], None] = lambda: None
        self._sums = [0.0, 0.0, 0.0]

    def prepare(self, _pixels: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return labels

    def train(self, data: np.ndarray, share: Share, rate: float, step: int) -> None:
        mine = float(data[: share.count].sum())
        self.weight += rate * sum(self._ranks.exchange("gradient", mine)) / share.total
        self.statistic = 0.9 * self.statistic + 0.1 * mine / 3
        self.rates.append(rate)
        self.steps.append(step)
        self._sums = [self._sums[0] + share.count, self._sums[1], self._sums[2] + share.count]

    def take_sums(self) -> list[float]:
        taken, self._sums = self._sums, [0.0, 0.0, 0.0]
        return taken

    def test(self, pixels: np.ndarray, _labels: np.ndarray) -> Tested:
        self.on_test()
        self.did.append("test")
        return Tested(float(len(pixels)), 0.0, float(len(pixels)))

    def average_statistics(self) -> None:
        self.did.append("average")
        self.statistic = sum(self._ranks.exchange("statistics", self.statistic)) / self._ranks.size

    def digest(self) -> str:
        return repr((self.weight, self.statistic))

    def write_state(self, path: Path, run: dict[str, Any]) -> None:
        self.did.append("save")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("state.json", json.dumps([run, self.weight, self.statistic]))

    def read_run(self, path: Path) -> dict[str, Any]:
        run: dict[str, Any] = self._read(path)[0]
        return run

    def load_state(self, path: Path) -> None:
        _, self.weight, self.statistic = self._read(path)

    def _read(self, path: Path) -> Any:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("state.json"))

    def share_state(self) -> None:
        self.weight, self.statistic = self._ranks.exchange("state", (self.weight, self.statistic))[0]

    def write_model(self, folder: Path, facts: Mapping[str, object]) -> None:
        self.on_export()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.json").write_text(json.dumps(facts))


class Stop:
    """In place of the signal: each rank's own."""

    here = threading.local()

    def __init__(self) -> None:
        self.requested = False
        self.here.stop = self


def train(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    *options: str,
    ranks: int = 2,
    test_examples: int = 8,
    validation_examples: int = 0,
    damaged: Sequence[int] = (),
    before: Callable[[Numbers], None] = lambda _: None,
) -> list[Numbers]:
    """Train to the end or until it is stopped; the models, by rank.

    `before` is called for each rank, in its thread, before it trains. `damaged`: examples of each split that can't be
    read. With `validation_examples`, the set has a validation split.
    """
    monkeypatch.setenv("DTJ_ROOT", str(root))
    monkeypatch.delenv("DTJ_ARTIFACTS_URI", raising=False)
    monkeypatch.setattr(picture_training, "StopRequest", Stop)
    monkeypatch.setattr(training, "end_when_stopped", lambda *_: None)
    monkeypatch.setattr(progress, "report", lambda **_: None)
    root.mkdir(exist_ok=True)
    together = Together(ranks)
    train, test, validation = (
        _pictures(count, damaged) for count in (EXAMPLES, test_examples, validation_examples)
    )
    data = PictureSet(train, test, EXAMPLES, validation=validation if validation_examples else None)
    chosen = parse(["--batch-size=8", "--data=none", *options], "program", "", ("cnn", "resnet18"))

    def run(rank: int) -> Numbers:
        ranks = ThreadRanks(together, rank)
        model = Numbers(chosen, ranks)
        before(model)
        try:
            picture_training.train(chosen, data, model, ranks, model)
        except BaseException as error:
            if not isinstance(error, SystemExit) or error.code != EXIT_CODE:
                together.abort()
                raise
            model.did.append("stopped")
        return model

    with ThreadPoolExecutor(ranks) as pool:
        return [each.result() for each in [pool.submit(run, rank) for rank in range(ranks)]]


def _pictures(count: int, damaged: Sequence[int]) -> Pictures:
    labels = np.arange(count)
    labels[np.isin(labels, damaged)] = SKIPPED
    return Pictures(np.zeros((count, 1, 8, 8), np.uint8), labels)


def metrics(root: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of a kind in metrics.jsonl."""
    lines = map(json.loads, (root / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]
