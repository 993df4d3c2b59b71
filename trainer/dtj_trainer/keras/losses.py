"""Loss and accuracy of the Keras programs."""

from __future__ import annotations

import tensorflow as tf


def cross_entropies(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Return the cross entropy of each example; `smoothing` of each label is spread evenly over all classes."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if not smoothing:
        return losses
    return (1 - smoothing) * losses - smoothing * tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)


def right_answers(labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return how many examples have their label as the best answer, and among the best five."""
    among = tf.math.in_top_k(tf.cast(labels, tf.int32), tf.cast(logits, tf.float32), min(5, logits.shape[-1]))
    best = tf.equal(tf.argmax(logits, 1, labels.dtype), labels)
    return tf.reduce_sum(tf.cast(best, tf.int32)), tf.reduce_sum(tf.cast(among, tf.int32))
