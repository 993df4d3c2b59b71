"""The random numbers of Keras' layers as a function of step and rank."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from dtj_trainer.train.seeds import seed_of


def draw_anew(model: keras.Model, seed: int, step: int, rank: int) -> None:
    """Seed the generators of layers such as dropout for a step of a rank; see `seed_of`."""
    weights = {id(each) for each in model.weights}  # Other variables are the states of generators.
    states = [each for each in model.variables if id(each) not in weights]
    if states:
        high, low = divmod(seed_of(seed, step, rank), 2**32)
        for place, state in enumerate(states):
            state.assign(np.array([high, (low + place) % 2**32], np.uint32))


def state_of(chance: tf.Tensor, place: int) -> tf.Tensor:
    """Return the state of a generator, int64, of 64 random bits and the generator's place in the network."""
    half = tf.constant(2**32 - 1, tf.int64)
    high = tf.bitwise.bitwise_and(tf.bitwise.right_shift(chance, tf.constant(32, tf.int64)), half)
    return tf.stack([high, tf.bitwise.bitwise_and(chance + place, half)])
