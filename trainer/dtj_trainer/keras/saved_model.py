"""The final model as a file that Keras alone loads, and its description."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from dtj_trainer.train.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODEL = "model.keras"
DESCRIPTION = "model.json"


def write(
    folder: Path,
    model: keras.Model,
    *,
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    facts: Mapping[str, object],
) -> None:
    """Write the model and its description into `folder`, each file atomically.

    `shape` is height, width and channels of a picture; `facts` go into the description (accuracy, steps).
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / MODEL, model.save)
    description = {
        "model": name,
        "input": {"dtype": "float32", "shape": ["batch", *shape], "range": [0, 255]},
        "output": {"shape": ["batch", classes], "meaning": "logits"},
        "classes": classes,
        "parameters": model.count_params(),
        **facts,
        "files": {MODEL: "keras.models.load_model(file): needs Keras and TensorFlow alone"},
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    write_whole(folder / DESCRIPTION, lambda path: path.write_text(json.dumps(description, indent=2) + "\n"))
