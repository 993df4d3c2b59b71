"""The loss of the Keras programs."""

from __future__ import annotations

import tensorflow as tf


def cross_entropies(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Return the cross entropy of each example; `smoothing` of each label is spread evenly over all classes."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if not smoothing:
        return losses
    return (1 - smoothing) * losses - smoothing * tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
