"""The final model as a file that Keras alone loads, and its description."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from dtj_trainer.keras.losses import cross_entropies
from dtj_trainer.train import model_files
from dtj_trainer.train.smallest_pass import refused, same_generators, tell_unused
from dtj_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


log = logging.getLogger(__name__)

MODEL = "model.keras"
WEIGHTS = "weights.npz"
"""The file that replaces MODEL if Keras can't save the model."""


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


# These functions try a user's Keras network before the training: what would fail in its last step fails at once.

_LAYER = re.compile(r"Exception encountered when calling ([^\n]+?)\.call\(\)|Detected at node (\S+)")


def try_pass(network: keras.Model, size: int, shape: tuple[int, int, int], classes: int) -> None:
    """Make a pass of `size` pictures, with a loss and a backward pass, which changes no variable of the network.

    The pass is a graph of its own, with the signature of a training step. If the pass fails, the process ends with
    the layer and the remedy.
    """
    weights = [each.value for each in network.trainable_variables]
    kept = [(each, each.value) for each in network.variables]
    unused: list[str] = []

    def forward(pixels: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape, keras.StatelessScope(kept, collect_losses=True):
            logits = network(tf.cast(pixels, tf.float32), training=True)
            if logits.shape[1:] != (classes,):
                raise ValueError(f"the network returned logits of shape {logits.shape} for {classes} classes")
            loss = tf.add_n([tf.reduce_sum(cross_entropies(labels, logits, 0.0)), *network.losses])
        gradients = tape.gradient(loss, weights)
        unused.extend(
            str(each.path)
            for each, gradient in zip(network.trainable_variables, gradients, strict=True)
            if gradient is None
        )
        return [loss, *(each for each in gradients if each is not None)]

    signature = [tf.TensorSpec([None, *shape], tf.uint8), tf.TensorSpec([None], tf.int64)]
    pixels = np.random.default_rng(1).integers(0, 256, (size, *shape), np.uint8)
    with same_generators():  # The network may draw random numbers while its graph is made.
        try:
            tf.function(forward, signature, autograph=False)(pixels, np.zeros(size, np.int64))
        except Exception as error:
            found = _LAYER.search(str(error))
            raise SystemExit(
                refused(size, (found[1] or found[2]) if found else "the backward pass", error)
            ) from error
    tell_unused(unused)


def try_save(network: keras.Model) -> None:
    """Record in the log and in the job's progress if Keras can't save the network's configuration."""
    try:
        keras.saving.serialize_keras_object(network)
    except Exception as error:
        log.debug("the network can't be saved", exc_info=True)
        model_files.not_exported("Keras", error, f"{WEIGHTS} will have the weights")
