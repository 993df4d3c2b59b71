"""Keras networks with losses of their own, for `--model`. Each has one dense layer of the same first weights."""

from typing import Any

import keras


class Added(keras.layers.Layer):
    """Adds the squares of its inputs, as variational autoencoders and mixtures of experts add losses."""

    def call(self, values: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.sum(keras.ops.square(values), -1)))
        return values


def _network(classes: int, *after: keras.layers.Layer, **options: Any) -> keras.Model:
    first = keras.initializers.RandomNormal(seed=3)
    dense = keras.layers.Dense(classes, kernel_initializer=first, use_bias=False, **options)
    return keras.Sequential([keras.layers.Flatten(), dense, *after])


def plain(channels: int, classes: int) -> keras.Model:
    """See `dtj_trainer.train.own_model`."""
    return _network(classes)


def regularized(channels: int, classes: int) -> keras.Model:
    return _network(classes, kernel_regularizer=keras.regularizers.L2(10))


def active(channels: int, classes: int) -> keras.Model:
    """Its loss is that of `added`."""
    return _network(classes, activity_regularizer=keras.regularizers.L2(1))


def added(channels: int, classes: int) -> keras.Model:
    return _network(classes, Added())
