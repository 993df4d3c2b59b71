"""The training loop of one process whose steps complete later, as in the chief of a ParameterServer job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from dtj_trainer.data.sharding import Sharding, Share
from dtj_trainer.train import loop as training
from dtj_trainer.train.batches import Batch, Batches
from dtj_trainer.train.loop import LossNotFinite, Stopped, Training
from dtj_trainer.train.options import parse
from dtj_trainer.train.protocols import Model, Position, Ranks, Saver


class Late(Model[Share], Saver):
    """A model and its saver. Steps end two steps after they began; at step `lost_at` a step is applied twice."""

    def __init__(self, *, lost_at: int = -1, loss: float = 1.0) -> None:
        self.saves: list[tuple[int, int, int, bool]] = []
        self.begun: list[int] = []
        self.stop = SimpleNamespace(requested=False)
        self.on_step: Callable[[int], None] = lambda _: None
        self._lost_at, self._loss, self._running = lost_at, loss, 0

    def train(self, data: Share, share: Share, rate: float, step: int) -> None:
        assert (data, rate) == (share, 0.05)
        self.begun.append(step)
        self._running += share.count
        self.on_step(step)

    def settle(self) -> int:
        return int(self._lost_at == self.begun[-1])

    def take_sums(self) -> tuple[float, float, float]:
        ended, self._running = max(self._running - 16, 0), min(self._running, 16)
        return self._loss * ended, 0.0, ended

    def average_statistics(self) -> None:
        pass

    def resume(self) -> tuple[Position, None]:
        return Position(), None

    def save(self, at: Position, ramp: object, accuracy: float | None, *, final: bool, wait: bool) -> None:
        assert (accuracy, ramp is None) == (None, False)
        assert wait == (final or self.stop.requested)
        self.saves.append((at.step, at.epoch, at.examples, final))

    def export(self, at: Position, accuracy: float | None) -> Mapping[str, object]:
        return {"steps": at.step, "accuracy": accuracy}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Train on 40 examples in steps of 8."""
    monkeypatch.setattr(training, "end_when_stopped", lambda *_: None)

    def train(model: Late, *options: str, at: Position | None = None) -> None:
        fixed = ("--batch-size=8", "--lr=0.05", "--warmup-epochs=0", "--schedule=constant")
        chosen = parse([*fixed, *options], "program", "", ("cnn", "resnet18"))
        batches = Batches(Sharding(40, 8, rank=0, ranks=1, seed=1), lambda _, share: Batch(share, share))
        stop: Any = model.stop
        at = at or model.resume()[0]
        Training(chosen, batches, model, Ranks(), model, at, None, stop, None, meeting_seconds=0).run()

    return train


def test_each_epoch_is_saved_and_the_last_one_as_such(run: Callable[..., None]) -> None:
    model = Late()
    run(model, "--epochs=2", "--checkpoint-steps=4")
    assert model.saves == [(4, 0, 32, False), (5, 1, 0, False), (8, 1, 24, False), (10, 2, 0, True)]
    again = Late()
    run(again, "--epochs=2", at=Position(10, 2, 0))
    assert (again.begun, again.saves) == ([], [(10, 2, 0, True)])


def test_a_step_that_is_applied_twice_counts_twice(run: Callable[..., None]) -> None:
    model = Late(lost_at=3)
    run(model, "--epochs=2", "--checkpoint-steps=4", "--max-steps=8")
    assert model.begun == [0, 1, 2, 3, 5, 6, 7]
    assert model.saves == [(5, 0, 32, False), (6, 1, 0, False), (8, 1, 16, True)]
    ends = Late(lost_at=3)
    run(ends, "--epochs=2", "--checkpoint-steps=4", "--max-steps=5")
    assert ends.saves == [(5, 0, 32, True)]


def test_a_stop_is_seen_after_each_step_and_does_not_undo_the_last(run: Callable[..., None]) -> None:
    def stopped_at(step: int) -> Late:
        model = Late()
        model.on_step = lambda made: setattr(model.stop, "requested", made == step)
        return model

    for step, saves in ((2, [(3, 0, 24, False)]), (4, [(5, 1, 0, False)])):
        model = stopped_at(step)
        with pytest.raises(Stopped, match=f"stopped at step {step + 1}, with a checkpoint"):
            run(model, "--epochs=2")
        assert model.saves == saves
    last = stopped_at(9)
    run(last, "--epochs=2")
    assert last.saves[-1] == (10, 2, 0, True)


def test_a_loss_that_is_not_finite_ends_it_before_a_save(run: Callable[..., None]) -> None:
    model = Late(loss=float("nan"))
    with pytest.raises(LossNotFinite, match="the loss is nan at step 3: try a lower --lr"):
        run(model, "--epochs=2", "--checkpoint-steps=3")
    assert model.saves == []
