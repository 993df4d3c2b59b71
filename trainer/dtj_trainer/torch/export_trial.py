"""Tries whether torch.export takes a network: MODEL CHANNELS HEIGHT WIDTH CLASSES. Exits with REFUSED if it does not.

The last line of the output is then the reason. Exit codes other than 0 and REFUSED are failures of the trial itself.
"""

from __future__ import annotations

import os
import sys

import torch

from dtj_trainer.torch.models import build
from dtj_trainer.torch.saved_model import exported
from dtj_trainer.train.export_process import REFUSED
from dtj_trainer.train.model_files import reason_of


def main() -> None:
    """Run the program."""
    os.nice(19)
    torch.set_num_threads(1)
    name, *numbers = sys.argv[1:]
    channels, height, width, classes = map(int, numbers)
    shape = channels, height, width
    network = build(name, shape, classes).eval()
    try:
        exported(network, shape)
    except Exception as error:
        print(reason_of("torch.export", error, "model.pt will have the weights"))
        raise SystemExit(REFUSED) from error


if __name__ == "__main__":
    main()
