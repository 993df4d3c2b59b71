"""The final model as a file that Keras alone loads, and its description."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from dtj_trainer.train import model_files
from dtj_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

MODEL = "model.keras"
WEIGHTS = "weights.npz"
"""In place of MODEL if Keras can't save the model."""


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
    `class_names`, in the order of the outputs. A model that Keras can't save has its weights and a description,
    which says why.
    """
    model_files.begin(folder, MODEL, WEIGHTS)
    height, width, channels = shape
    files, failure = {MODEL: "keras.models.load_model(file): needs Keras and TensorFlow alone"}, {}
    try:
        write_whole(folder / MODEL, model.save)
    except Exception as error:
        # A layer without `get_config`, for example: its weights can be saved, its configuration can't.
        log.debug("model.save failed", exc_info=True)
        write_whole(folder / WEIGHTS, lambda path: np.savez(path, allow_pickle=False, **_arrays(model)))
        files = {WEIGHTS: "numpy.load(file): the network's variables, by their paths"}
        failure = {
            "export": {"error": model_files.not_exported("Keras", error, f"{WEIGHTS} has the weights")}
        }
    description = {
        "model": name,
        "input": {"dtype": "float32", "shape": ["batch", *shape], "range": [0, 255]},
        "output": {"shape": ["batch", classes], "meaning": "logits"},
        "classes": classes,
        "parameters": model.count_params(),
        **model_files.picture_facts((channels, height, width), "NHWC", class_names, orient),
        **facts,
        "files": files,
        **failure,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    model_files.write_description(folder, description)


def _arrays(model: keras.Model) -> dict[str, np.ndarray]:
    return {str(variable.path): np.asarray(variable) for variable in model.weights}
