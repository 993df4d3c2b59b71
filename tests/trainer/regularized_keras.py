"""Keras networks with losses of their own, for `--model`. Each has one dense layer of the same first weights."""

import random
from typing import Any

import keras
import numpy as np
import tensorflow as tf


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


class Pairs(keras.layers.Layer):
    """Takes pictures two by two alone."""

    def call(self, values: Any) -> Any:
        size = values.shape[1]
        return keras.ops.reshape(keras.ops.reshape(values, (-1, 2, size))[:, ::-1], (-1, size))


def paired(channels: int, classes: int) -> keras.Model:
    return _network(classes, Pairs())


class Drawn(keras.layers.Layer):
    """Has a weight that no pass uses, a state that each pass changes, and draws from every generator."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)
        self.spare = self.add_weight(shape=(3,), name="spare")
        self.count = self.add_weight(shape=(), trainable=False, initializer="zeros", name="count")

    def call(self, values: Any, training: bool = False) -> Any:
        if training:
            self.count.assign_add(random.random() + np.random.random())
            values = values * tf.random.uniform(())
        return self.dropout(self.norm(values, training=training), training=training)


def drawn(channels: int, classes: int) -> keras.Model:
    return _network(classes, Drawn())
