"""Keras networks for small pictures, which the TensorFlow programs train."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = ("cnn", "resnet20")


def build(name: str, shape: tuple[int, int, int], classes: int, seed: int) -> keras.Model:
    """Build a new model, one of MODELS, for pictures of `shape` (height, width, channels).

    Takes float32 pixels as in the data set, 0 to 255, of shape (batch, height, width, channels); returns logits of
    shape (batch, classes). The same seed gives the same weights on every machine. Raises ValueError for an unknown
    name, or for pictures too small for the network.
    """
    if name not in MODELS:
        raise ValueError(f"no model {name!r}: there are {', '.join(MODELS)}")
    height, width, _ = shape
    if min(height, width) < 8:
        raise ValueError(f"{name} needs pictures of at least 8x8, these are {height}x{width}")
    pixels = keras.Input(shape, dtype="float32", name="pixels")
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1.0, name="scaling")(pixels)
    # Each layer uses a seed of its own, because layers of the same shape must not start with equal weights.
    seeds = itertools.count(seed * 1000)
    logits = _cnn(scaled, classes, seeds) if name == "cnn" else _resnet20(scaled, classes, seeds)
    return keras.Model(pixels, logits, name=name)


def _cnn(values: Any, classes: int, seeds: Iterator[int]) -> Any:
    """Two convolutions with pooling, two dense layers; the counterpart of `dtj_trainer.torch.models.cnn`.

    Without batch normalization, n shards of a batch are equivalent to the batch. The functions are smooth (SiLU,
    average pooling), so that rounding differences between them stay small.
    """
    for number, filters in enumerate((16, 32), start=1):
        values = keras.layers.Conv2D(
            filters,
            3,
            padding="same",
            activation="silu",
            kernel_initializer=keras.initializers.HeNormal(next(seeds)),
            name=f"conv{number}",
        )(values)
        values = keras.layers.AveragePooling2D(2, name=f"pool{number}")(values)
    values = keras.layers.Flatten(name="flat")(values)
    values = keras.layers.Dense(
        64, activation="silu", kernel_initializer=keras.initializers.HeNormal(next(seeds)), name="dense"
    )(values)
    return _head(values, classes, seeds)


def _resnet20(values: Any, classes: int, seeds: Iterator[int]) -> Any:
    """The network of He et al. (2015), section 4.2, with n = 3: 6n + 2 = 20 layers, shortcuts without weights."""
    values = _normalised(_convolution(values, 16, 1, seeds, "stem"), "stem")
    values = keras.layers.ReLU(name="stem_relu")(values)
    for stage, filters in enumerate((16, 32, 64), start=1):
        for block in range(1, 4):
            stride = 2 if stage > 1 and block == 1 else 1
            values = _block(values, filters, stride, seeds, f"stage{stage}_block{block}")
    values = keras.layers.GlobalAveragePooling2D(name="pool")(values)
    return _head(values, classes, seeds)


def _block(values: Any, filters: int, stride: int, seeds: Iterator[int], name: str) -> Any:
    """Two 3x3 convolutions and a shortcut, which takes every `stride`-th pixel and pads further channels with
    zeros.
    """
    inner = _normalised(_convolution(values, filters, stride, seeds, f"{name}_a"), f"{name}_a")
    inner = keras.layers.ReLU(name=f"{name}_a_relu")(inner)
    inner = _normalised(_convolution(inner, filters, 1, seeds, f"{name}_b"), f"{name}_b")
    missing = filters - values.shape[-1]
    if stride > 1:
        # padding="same" gives the size of a padded, strided convolution also for an odd number of rows.
        values = keras.layers.AveragePooling2D(1, stride, padding="same", name=f"{name}_strided")(values)
    if missing:
        values = keras.ops.pad(values, [(0, 0), (0, 0), (0, 0), (missing // 2, missing - missing // 2)])
    return keras.layers.ReLU(name=f"{name}_relu")(keras.layers.Add(name=f"{name}_sum")([inner, values]))


def _convolution(values: Any, filters: int, stride: int, seeds: Iterator[int], name: str) -> Any:
    return keras.layers.Conv2D(
        filters,
        3,
        stride,
        padding="same",
        use_bias=False,
        kernel_initializer=keras.initializers.HeNormal(next(seeds)),
        name=f"{name}_conv",
    )(values)


def _normalised(values: Any, name: str) -> Any:
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(values)


def _head(values: Any, classes: int, seeds: Iterator[int]) -> Any:
    return keras.layers.Dense(
        classes, kernel_initializer=keras.initializers.GlorotUniform(next(seeds)), name="logits"
    )(values)
