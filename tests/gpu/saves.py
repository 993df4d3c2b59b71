"""`python -m tests.gpu.saves DATA MEGABYTES SECONDS`: a training that saves a large state beside its steps.

Prints a line of JSON: the longest stall in steps, the memory of a save, and the rate of a restore.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from dtj_trainer import contract
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.torch import model as torch_model
from dtj_trainer.torch.model import TorchModel, TorchSaver
from dtj_trainer.torch.models import PictureClassifier
from dtj_trainer.torch.ranks import TensorRanks
from dtj_trainer.train.batches import picture_batches
from dtj_trainer.train.loop import Stopped, Training
from dtj_trainer.train.stop import StopRequest
from tests.gpu.rates import DEVICE, GPU, options_of

UNITS = 4096
BATCH = 16
"""So small that the training does not reach the end of an epoch, whose save waits for the one under way."""
SETTLED_STEPS = 5
LEAST_STEPS = 20
EVERY = 2.0
"""Seconds between two saves."""


class Timed(TorchModel):
    """Notes when each step has ended on the device, and asks for the end after some time."""

    def __init__(self, *given: Any, seconds: float, stop: StopRequest) -> None:
        super().__init__(*given)
        self.times: list[float] = []
        self.memory: list[tuple[int, int]] = []
        self._seconds, self._stop = seconds, stop

    def train(self, *given: Any) -> None:
        """See Model."""
        super().train(*given)
        if GPU:
            torch.cuda.synchronize()
        self.times.append(time.monotonic())
        self.memory.append((torch.cuda.max_memory_allocated() if GPU else 0, _resident()))
        if len(self.times) > LEAST_STEPS and self.times[-1] - self.times[0] > self._seconds:
            self._stop.requested = True


def _resident() -> int:
    """Return the bytes of this process and of those that save."""
    own = psutil.Process()
    return sum(each.memory_info().rss for each in (own, *own.children()))


def _build(units: int) -> Any:
    def build(_name: str, shape: tuple[int, int, int], classes: int, *_: object) -> PictureClassifier:
        pixels = shape[0] * shape[1] * shape[2]
        layers = nn.Linear(pixels, UNITS), nn.ReLU(), nn.Linear(UNITS, units), nn.ReLU()
        return PictureClassifier(
            nn.Sequential(nn.Flatten(), *layers, nn.Linear(units, classes)), [0.0], [1.0]
        )

    return build


def main(data: str, megabytes: int, seconds: float) -> None:
    """Train, save, restore, and print the figures."""
    # Weights and SGD's momentum together have the bytes.
    vars(torch_model)["build"] = _build(megabytes * 10**6 // 4 // 2 // UNITS)
    options = options_of(
        f"--data={data}", f"--checkpoint-seconds={EVERY if GPU else 0.5}", f"--batch-size={BATCH}"
    )
    pictures, ranks, stop = options.load(), TensorRanks(), StopRequest()
    model = Timed(options, pictures, DEVICE, ranks, seconds=seconds, stop=stop)
    sharding = Sharding(pictures.train.blocks, BATCH, rank=0, ranks=1, seed=1, step_size=BATCH)
    batches = picture_batches(pictures.train, sharding, model.prepare, workers=4, augment=False, seed=1)
    saver = TorchSaver(options, pictures, model, ranks)
    at, ramp = saver.resume()
    with suppress(Stopped):
        Training(options, batches, model, ranks, saver, at, ramp, stop, None).run()
    steps = [after - before for before, after in pairwise(model.times[SETTLED_STEPS:])]
    before, after = model.memory[SETTLED_STEPS], [max(each) for each in zip(*model.memory, strict=True)]
    median = statistics.median(steps)
    folder = Path(contract.root()) / contract.CHECKPOINTS
    size = sum(path.stat().st_size for path in max(folder.iterdir()).rglob("*") if path.is_file())
    again = TorchSaver(options, pictures, TorchModel(options, pictures, DEVICE, ranks), ranks)
    began = time.monotonic()
    resumed, _ = again.resume()
    if GPU:
        torch.cuda.synchronize()
    took = time.monotonic() - began
    assert resumed.step == at.step, f"restored step {resumed.step} of {at.step}"
    figures = {
        "saves": len([*folder.iterdir()]),
        "step, ms": 1000 * median,
        "longest stall in steps": (max(steps) - median) / median,
        "GPU memory of a save by state": (after[0] - before[0]) / size,
        "memory of a save by state": (after[1] - before[1]) / size,
        "restore, MB/s": size / 1e6 / took,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
