"""The final model as a file that Keras alone loads, and its description."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from dtj_trainer.train import model_files
from dtj_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MODEL = "model.keras"


def write(
    folder: Path,
    model: keras.Model,
    *,
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    facts: Mapping[str, object],
    class_names: Sequence[str] = (),
    orient: bool = False,
) -> None:
    """Write the model, its description and the manifest into `folder`, each file atomically.

    `shape` is height, width and channels of a picture. `facts` go into the description (accuracy, steps), and so do
    `class_names`, in the order of the outputs.
    """
    model_files.begin(folder)
    height, width, channels = shape
    write_whole(folder / MODEL, model.save)
    description = {
        "model": name,
        "input": {"dtype": "float32", "shape": ["batch", *shape], "range": [0, 255]},
        "output": {"shape": ["batch", classes], "meaning": "logits"},
        "classes": classes,
        "parameters": model.count_params(),
        **model_files.picture_facts((channels, height, width), "NHWC", class_names, orient),
        **facts,
        "files": {MODEL: "keras.models.load_model(file): needs Keras and TensorFlow alone"},
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    model_files.write_description(folder, description)
