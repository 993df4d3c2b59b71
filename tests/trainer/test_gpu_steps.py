"""What a training does otherwise on a GPU, with a stand-in: its clock, and its optimizer's checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.gpu.rates import options_of
from torch import nn

from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.data.sharding import Share
from dtj_trainer.torch import model as optimizers
from dtj_trainer.torch.model import TorchModel, TorchSaver
from dtj_trainer.torch.ranks import TensorRanks
from dtj_trainer.torch.step_times import MEASURED_STEPS, StepClock

CPU = torch.device("cpu")
PICTURES = Pictures(np.zeros((4, 1, 8, 8), "u1"), np.arange(4))
DATA = PictureSet(PICTURES, PICTURES, 4)


class Event:
    """An event of a stream, each 10 ms after the one before."""

    made = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.made += 1
        self.number = Event.made

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return 10.0 * (end.number - self.number)


@pytest.mark.parametrize("steps", [1, 5, 200])
def test_on_a_gpu_some_steps_stand_for_all(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    clock = StepClock(network, torch.device("cuda"), exchanged=True)

    def train() -> None:
        clock.forward()
        loss = network(torch.ones(1, 2)).sum()
        clock.backward()
        loss.backward()
        clock.passed()
        clock.averaged()
        clock.updated()

    for _ in range(2):  # The clock learns from the first interval how many steps one has.
        made = Event.made
        for _ in range(steps):
            train()
        parts = clock.take()

    # After its first pass, a step has seven marks: two of gradients and five of calls.
    assert Event.made - made == 7 * min(steps, -(-steps // (steps // MEASURED_STEPS or 1)))
    assert parts.steps == steps
    assert parts.forward == pytest.approx(steps * 0.010)
    assert parts.optimizer == pytest.approx(steps * 0.010)
    assert parts.reduced == steps * 4 * 15
    assert clock.take().steps == 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adadelta"])
def test_a_checkpoint_of_another_device_keeps_the_optimizers_own_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, optimizer: str
) -> None:
    """A fused optimizer runs on a CPU, too. `GradScaler` on a GPU fails with one that is not fused any more."""
    options = options_of("--data=none", f"--optimizer={optimizer}")
    share = Share(np.arange(4), 4, 4, 4)
    make = optimizers.make_optimizer

    def trainer(*, fused: bool) -> tuple[TorchModel, TorchSaver]:
        monkeypatch.setattr(optimizers, "make_optimizer", lambda *given, **_: make(*given, fused=fused))
        model = TorchModel(options, DATA, CPU, TensorRanks())
        step(model)
        return model, TorchSaver(options, DATA, model, TensorRanks())

    def step(model: TorchModel) -> None:
        model.train(model.prepare(PICTURES.pixels, PICTURES.labels), share, 0.1, 0)

    pairs = {fused: trainer(fused=fused) for fused in (True, False)}
    for fused, (_, saver) in pairs.items():
        saver.write_state(tmp_path / f"{fused}.pt", {})
    for fused, (model, saver) in pairs.items():
        saver.load_state(tmp_path / f"{not fused}.pt")
        kept = [group.get("fused") for group in model.optimizer.param_groups]
        assert kept == [None if optimizer == "adadelta" else fused or None]
        step(model)
