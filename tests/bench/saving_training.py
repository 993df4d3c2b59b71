"""`python -m tests.bench.saving_training BYTES TIMES OPTIONS…`: a PyTorch training of one rank on one processor.

Weights and SGD's momentum together have BYTES. The training appends the time (monotonic, in seconds) at which each
step ended to the file TIMES. OPTIONS are those of the program. The process that saves may use all processors.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from torch import nn

from dtj_trainer.programs import torch_image_classification
from dtj_trainer.torch import division
from dtj_trainer.torch import model as torch_model
from dtj_trainer.torch.models import PictureClassifier

UNITS = 4096
PINNED_AFTER = 2
"""Steps. The first one starts the process that saves, which would inherit the processor."""


class Model(torch_model.TorchModel):
    """Writes down when its steps ended."""

    times: TextIO
    steps = 0

    def train(self, *given: Any, **named: Any) -> None:
        """Make a step."""
        super().train(*given, **named)
        print(time.monotonic(), file=self.times, flush=True)
        self.steps += 1
        if self.steps == PINNED_AFTER:
            processor = {min(os.sched_getaffinity(0))}
            for thread in Path("/proc/self/task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), processor)


def main() -> None:
    """Train until the process is killed."""
    size, times, *options = sys.argv[1:]
    units = int(size) // 4 // 2 // UNITS

    def build(_name: str, shape: tuple[int, int, int], classes: int, *_: object) -> PictureClassifier:
        pixels = shape[0] * shape[1] * shape[2]
        layers = nn.Linear(pixels, UNITS), nn.ReLU(), nn.Linear(UNITS, units - pixels), nn.ReLU()
        return PictureClassifier(
            nn.Sequential(nn.Flatten(), *layers, nn.Linear(units - pixels, classes)), [0.0], [1.0]
        )

    vars(torch_model)["build"] = build
    vars(division)["TorchModel"] = Model
    with Path(times).open("w", encoding="utf-8") as file:
        Model.times = file
        torch_image_classification.main(options)


if __name__ == "__main__":
    main()
