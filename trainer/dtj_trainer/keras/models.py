"""Keras networks for pictures, which the TensorFlow programs train."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import keras

from dtj_trainer.train.own_model import is_own, made_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def build(name: str, shape: tuple[int, int, int], classes: int, seed: int) -> keras.Model:
    """Build a new model for pictures of `shape` (height, width, channels).

    `name` is one of MODELS, or `package.module:factory` for a network of the user, see `own_model`. The model takes
    float32 pixels as in the data set, 0 to 255, of shape (batch, height, width, channels); it returns logits of shape
    (batch, classes). The same seed gives the same weights on every machine. Raises ValueError for an unknown name,
    for pictures too small for the network, and for a factory that makes no network for them.
    """
    if name not in MODELS and not is_own(name):
        raise ValueError(f"no model {name!r}: there are {', '.join(MODELS)}")
    height, width, channels = shape
    if min(height, width) < 8 and not is_own(name):
        raise ValueError(f"{name} needs pictures of at least 8x8, these are {height}x{width}")
    pixels = keras.Input(shape, dtype="float32", name="pixels")
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1.0, name="scaling")(pixels)
    keras.utils.set_random_seed(seed)  # for networks whose layers have no seeds of their own
    if is_own(name):
        logits = _own(name, channels, classes)(scaled)
    else:
        # Each layer uses a seed of its own, because layers of the same shape must not start with equal weights.
        logits = _NETWORKS[name](scaled, classes, itertools.count(seed * 1000))
    return keras.Model(pixels, logits, name="own" if is_own(name) else name)


def _own(path: str, channels: int, classes: int) -> keras.layers.Layer:
    network = made_by(path, channels=channels, classes=classes)
    if not isinstance(network, keras.layers.Layer):
        raise ValueError(f"--model={path} returned {type(network).__name__}, and has to return a keras.Model")
    return network


def _application(values: Any, classes: int, seeds: Iterator[int], *, make: Callable[..., keras.Model]) -> Any:
    """Apply a network of keras.applications with new weights. Smaller pictures are padded to 32x32 pixels."""
    _, height, width, _ = values.shape
    missing = [max(32 - side, 0) for side in (height, width)]
    if any(missing):
        padding = [(each // 2, each - each // 2) for each in missing]
        values = keras.layers.ZeroPadding2D(padding, name="padding")(values)
    network = make(weights=None, input_shape=values.shape[1:], classes=classes, classifier_activation=None)
    # keras.applications draws seeds from Python's global generator, which other threads of the process use too.
    return keras.Model.from_config(_seeded(network.get_config(), seeds))(values)


def _seeded(config: Any, seeds: Iterator[int]) -> Any:
    """Return a network's configuration with a seed for each initializer and layer that has none."""
    if isinstance(config, list | tuple):
        return [_seeded(each, seeds) for each in config]
    if not isinstance(config, dict):
        return config
    return {
        key: next(seeds) if key == "seed" and value is None else _seeded(value, seeds)
        for key, value in config.items()
    }


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


def _resnet(values: Any, classes: int, seeds: Iterator[int], *, n: int) -> Any:
    """The network of He et al. (2015), section 4.2: 6n + 2 layers, shortcuts without weights."""
    values = _normalised(_convolution(values, 16, 1, seeds, "stem"), "stem")
    values = keras.layers.ReLU(name="stem_relu")(values)
    for stage, filters in enumerate((16, 32, 64), start=1):
        for block in range(1, n + 1):
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


_NETWORKS: Mapping[str, Callable[[Any, int, Iterator[int]], Any]] = {
    "cnn": _cnn,
    "resnet20": partial(_resnet, n=3),
    "resnet44": partial(_resnet, n=7),
    "vgg16": partial(_application, make=keras.applications.VGG16),
    "mobilenet_v2": partial(_application, make=keras.applications.MobileNetV2),
    "densenet121": partial(_application, make=keras.applications.DenseNet121),
}
"""Functions by the name of a network: they take scaled pixels, the number of classes and seeds, and return logits."""

MODELS = tuple(_NETWORKS)
