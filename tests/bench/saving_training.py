"""`python -m tests.bench.saving_training FRAMEWORK BYTES TIMES OPTIONS…`: a training of one rank on one processor.

FRAMEWORK is `torch` or `tensorflow`. Weights and SGD's momentum together have BYTES. The training appends the time
(monotonic, in seconds) at which each step ended to the file TIMES. OPTIONS are those of the program. The process that
saves may use all processors.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

UNITS = 4096
PINNED_AFTER = 2
"""Steps. The first one starts the process that saves, which would inherit the processor."""


def timed(train: Callable[..., None], times: TextIO) -> Callable[..., None]:
    """Return the method, which also writes down when it ended, and pins the process after the first steps."""
    steps = 0

    def step(*given: Any, **named: Any) -> None:
        nonlocal steps
        train(*given, **named)
        print(time.monotonic(), file=times, flush=True)
        steps += 1
        if steps == PINNED_AFTER:
            processor = {min(os.sched_getaffinity(0))}
            for thread in Path("/proc/self/task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), processor)

    return step


def torch(units: int, times: TextIO, options: Sequence[str]) -> None:
    """Train by PyTorch."""
    from torch import nn

    from dtj_trainer.programs import torch_image_classification
    from dtj_trainer.torch import model
    from dtj_trainer.torch.models import PictureClassifier

    def build(_name: str, shape: tuple[int, int, int], classes: int, *_: object) -> PictureClassifier:
        pixels = shape[0] * shape[1] * shape[2]
        layers = nn.Linear(pixels, UNITS), nn.ReLU(), nn.Linear(UNITS, units - pixels), nn.ReLU()
        return PictureClassifier(
            nn.Sequential(nn.Flatten(), *layers, nn.Linear(units - pixels, classes)), [0.0], [1.0]
        )

    vars(model)["build"] = build
    model.TorchModel.train = timed(model.TorchModel.train, times)  # type: ignore[method-assign]
    torch_image_classification.main(list(options))


def tensorflow(units: int, times: TextIO, options: Sequence[str]) -> None:
    """Train by Keras."""
    import keras

    from dtj_trainer.keras import model, models
    from dtj_trainer.programs import horovod_tf_image_classification

    def build(_name: str, shape: tuple[int, int, int], classes: int, _seed: int) -> keras.Model:
        pixels = shape[0] * shape[1] * shape[2]
        sizes = UNITS, units - pixels
        hidden = [keras.layers.Dense(size, activation="relu") for size in sizes]
        return keras.Sequential(
            [
                *(keras.Input(shape), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()),
                *(*hidden, keras.layers.Dense(classes)),
            ]
        )

    vars(models)["build"] = build
    model.KerasModel.train = timed(model.KerasModel.train, times)  # type: ignore[method-assign]
    horovod_tf_image_classification.main(list(options))


def main() -> None:
    """Train until the process is killed."""
    framework, size, times, *options = sys.argv[1:]
    with Path(times).open("w", encoding="utf-8") as file:
        {"torch": torch, "tensorflow": tensorflow}[framework](int(size) // 4 // 2 // UNITS, file, options)


if __name__ == "__main__":
    main()
