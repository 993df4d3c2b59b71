"""Tries a user's Keras network before the training: what would fail in its last step fails at once."""

from __future__ import annotations

import logging
import re

import keras
import numpy as np
import tensorflow as tf

from dtj_trainer.keras import saved_model
from dtj_trainer.keras.losses import cross_entropies
from dtj_trainer.train import model_files
from dtj_trainer.train.smallest import refused, same_generators, tell_unused

log = logging.getLogger(__name__)

_LAYER = re.compile(r"Exception encountered when calling ([^\n]+?)\.call\(\)|Detected at node (\S+)")


def try_pass(network: keras.Model, size: int, shape: tuple[int, int, int], classes: int) -> None:
    """Make a pass of `size` pictures, with a loss and a backward pass, which changes no variable of the network.

    The pass is a graph of its own, with the signature of a training step. Ends the process if it fails, with the
    layer and the remedy.
    """
    weights = [each.value for each in network.trainable_variables]
    kept = [(each, each.value) for each in network.variables]
    unused: list[str] = []

    def forward(pixels: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape, keras.StatelessScope(kept, collect_losses=True):
            logits = network(tf.cast(pixels, tf.float32), training=True)
            if logits.shape[1:] != (classes,):
                raise ValueError(f"it returned logits of shape {logits.shape} for {classes} classes")
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
    with same_generators():  # The network may draw while its graph is made.
        try:
            tf.function(forward, signature, autograph=False)(pixels, np.zeros(size, np.int64))
        except Exception as error:
            found = _LAYER.search(str(error))
            raise SystemExit(refused(size, (found[1] or found[2]) if found else "backward", error)) from error
    tell_unused(unused)


def try_save(network: keras.Model) -> None:
    """Tell in the log and in the job's progress if Keras can't save the network's configuration."""
    try:
        keras.saving.serialize_keras_object(network)
    except Exception as error:
        log.debug("the network can't be saved", exc_info=True)
        model_files.not_exported("Keras", error, f"{saved_model.WEIGHTS} will have the weights")
