"""Load a trained model in a process of its own and measure its accuracy on the test set.

Prints one JSON object: `accuracy`, `reported` (the training's own accuracy), `examples`, `model`, `loaded`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from dtj_trainer.data.errors import exit_on_data_error
from dtj_trainer.torch import saved_model
from dtj_trainer.train.options import DataOptions, add_data

if TYPE_CHECKING:
    from dtj_trainer.data.examples import Examples

BATCH = 500


def accuracy(model: torch.nn.Module, examples: Examples) -> float:
    """Return the fraction of `examples` whose label has the highest logit; `model` takes uint8 pixels."""
    right = 0
    with torch.inference_mode():
        for start in range(0, len(examples), BATCH):
            pictures = examples.read(np.arange(start, min(start + BATCH, len(examples))))
            logits = model(torch.from_numpy(pictures.pixels))
            right += int((logits.argmax(1) == torch.from_numpy(pictures.labels)).sum())
    return right / len(examples)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m dtj_trainer.programs.evaluate", description=__doc__)
    parser.add_argument(
        "--model-dir", type=Path, required=True, help="folder with model.json and the model's files"
    )
    add_data(parser)
    parser.add_argument(
        "--exported",
        action="store_true",
        help="load the exported program (model.pt2), not the weights (model.pt)",
    )
    chosen = parser.parse_args(arguments)
    with exit_on_data_error():
        data = DataOptions(
            **{field.name: getattr(chosen, field.name) for field in fields(DataOptions)}
        ).load()
    description = saved_model.describe(chosen.model_dir)
    model = (
        saved_model.load_exported(chosen.model_dir) if chosen.exported else saved_model.load(chosen.model_dir)
    )
    print(
        json.dumps(
            {
                "accuracy": accuracy(model, data.test),
                "reported": description["accuracy"],
                "examples": len(data.test),
                "model": description["model"],
                "loaded": saved_model.EXPORTED if chosen.exported else saved_model.WEIGHTS,
            }
        )
    )


if __name__ == "__main__":
    main()
