"""The training set as each worker reads it: the functions of the chief ask the worker's own process for examples.

The chief's functions run on the servers of the workers, and contain no Python. TensorFlow's operation `PyFunc` calls
a Python function by a token that the process gave the function. Each worker registers the same two functions before
any other: their tokens are the same on all workers, even if several workers share a machine.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from dtj_trainer.data.errors import DataCorrupt, DataError
from dtj_trainer.data.spread import Stock
from dtj_trainer.train.augment import shift_and_flip
from dtj_trainer.train.seeds import chances_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtj_trainer.data.examples import Examples
    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.ps.options import ServerOptions

    Augment = Callable[[np.ndarray, int, np.ndarray], np.ndarray]

_FACTS, _READ = "pyfunc_0", "pyfunc_1"
_registered = tf.Graph()
"""The graph that keeps the registered functions alive."""


class Dealt(NamedTuple):
    """What the chief sends to a worker for a step or a part of a step.

    ids: the examples to train on. blocks: the blocks that coming steps need, the earliest first. epoch: the epoch of
    the step, from which augmentation follows. rate: the learning rate of the step. chance: 64 bits from which the
    network's random numbers follow, such as those of dropout.
    """

    ids: np.ndarray
    blocks: np.ndarray
    epoch: int = 0
    rate: float = 0.0
    chance: int = 0

    def packed(self) -> bytes:
        """Return all as int64 in little-endian order: the bits of the rate, the epoch, the chance, ..."""
        rate, chance = np.float64(self.rate).view(np.int64), np.uint64(self.chance).view(np.int64)
        head = np.array([rate, self.epoch, chance, len(self.blocks)], np.int64)
        return np.concatenate((head, self.blocks, self.ids)).astype("<i8").tobytes()

    @classmethod
    def unpacked(cls, numbers: np.ndarray) -> Dealt:
        """Return what was packed to these int64."""
        rate, epoch, chance, count = numbers[:4]
        blocks, ids = np.split(numbers[4:], [int(count)])
        return cls(ids, blocks, int(epoch), float(rate.view(np.float64)), int(chance.view(np.uint64)))


class Facts(NamedTuple):
    """A training set: the shape of its pictures, the names of its classes, its blocks and its stock; see Examples."""

    height: int
    width: int
    channels: int
    class_names: tuple[str, ...]
    blocks: np.ndarray
    stock: Stock | None

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of each picture."""
        return self.height, self.width, self.channels

    @property
    def examples(self) -> int:
        """The number of training examples."""
        return int(self.blocks.sum())


def channels_last(pixels: np.ndarray) -> np.ndarray:
    """Return the pixels as Keras takes them: (examples, height, width, channels)."""
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))


def offer(data: PictureSet, worker: int, augment: Augment | None = None) -> None:
    """Let functions that run in this process, worker number `worker`, read the training set.

    `augment`: see `read_batch`. Such a function ends the process when the data can't be read.
    """
    channels, height, width = data.shape
    names = json.dumps([*data.class_names] or [*map(str, range(data.classes))]).encode()
    blocks, stock = data.train.blocks, data.train.stock or ()
    numbers = [height, width, channels, len(names), *names, len(blocks)]
    facts = np.concatenate([numbers, blocks, *stock]).astype(np.int64)
    ahead = _Ahead(data.train)

    def read(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.int32]:
        dealt = Dealt.unpacked(numbers)
        ahead.expect(dealt.blocks)
        try:
            return (*read_batch(data.train, dealt.ids, dealt.epoch, augment), np.int32(worker))
        except DataError as error:  # TensorFlow would pass the error on to the chief without its class.
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(error.exit_code)

    _register(_FACTS, lambda _: facts, [tf.int64])
    _register(_READ, read, [tf.uint8, tf.int32, tf.int32])


class _Ahead:
    """Loads the blocks that coming steps need. Every worker loads all: a step has examples of most of the blocks."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples
        self._first_ids = np.cumsum(examples.blocks) - examples.blocks
        self._expected = np.empty(0, np.int64)
        self._lock = threading.Lock()

    def expect(self, blocks: np.ndarray) -> None:
        """Load these blocks, unless they are loaded or being loaded since an earlier call."""
        with self._lock:
            if not np.array_equal(blocks, self._expected):
                self._expected = blocks
                some = blocks[self._examples.blocks[blocks] > 0]
                self._examples.expect(iter(self._first_ids[some].reshape(-1, 1)))


def augmentation(options: ServerOptions) -> Augment | None:
    """Return a function that augments pixels by epoch and example number, with the same result as other programs."""
    if not options.augment:
        return None

    def changed(pixels: np.ndarray, epoch: int, ids: np.ndarray) -> np.ndarray:
        return shift_and_flip(pixels, chances_of(options.seed, epoch, ids))

    return changed


def read_batch(
    examples: Examples, ids: np.ndarray, epoch: int = 0, augment: Augment | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels, channels last, and labels (int32). Raises DataCorrupt if no example can be read."""
    pictures, asked = examples.read(ids), len(ids)
    kept = np.flatnonzero(pictures.labels >= 0)
    if len(kept) < len(ids):
        pictures, ids = pictures.read(kept), ids[kept]
    if not len(pictures):
        raise DataCorrupt(f"none of the {asked} examples of a batch can be read")
    pixels = augment(pictures.pixels, epoch, ids) if augment else pictures.pixels
    return channels_last(pixels), pictures.labels.astype(np.int32)


def facts(coordinator: Any) -> Facts:
    """Return a worker's facts about its training set."""

    def ask() -> tf.Tensor:
        return tf.raw_ops.PyFunc(input=[tf.zeros([0], tf.int64)], token=_FACTS, Tout=[tf.int64])[0]

    scheduled = coordinator.schedule(tf.function(ask, autograph=False).get_concrete_function())
    coordinator.join()  # Returns when the result has arrived: see wait_until_arrived.
    height, width, channels, size, *rest = scheduled.fetch().tolist()
    names, count = tuple(json.loads(bytes(rest[:size]))), rest[size]
    columns = np.array(rest[size + 1 :], np.int64).reshape(-1, count)
    stock = Stock(*columns[1:]) if len(columns) > 1 else None
    return Facts(height, width, channels, names, columns[0], stock)


def rate_of(packed: tf.Tensor) -> tf.Tensor:
    """Return the rate of `Dealt.packed`, float32, in a function of TensorFlow."""
    return tf.cast(tf.bitcast(tf.io.decode_raw(packed, tf.int64)[0], tf.float64), tf.float32)


def chance_of(packed: tf.Tensor) -> tf.Tensor:
    """Return the bits of the chance of `Dealt.packed`, int64, in a function of TensorFlow."""
    return tf.io.decode_raw(packed, tf.int64)[2]


def read_here(packed: tf.Tensor, shape: tuple[int, int, int]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return pixels and labels of `Dealt.packed`, and the worker's number, in a function that runs on a worker."""
    numbers = tf.io.decode_raw(packed, tf.int64)
    pixels, labels, worker = tf.raw_ops.PyFunc(
        input=[numbers], token=_READ, Tout=[tf.uint8, tf.int32, tf.int32]
    )
    return (
        tf.ensure_shape(pixels, [None, *shape]),
        tf.ensure_shape(labels, [None]),
        tf.ensure_shape(worker, []),
    )


def _register(token: str, function: Callable[[np.ndarray], Any], types: list[tf.DType]) -> None:
    with _registered.as_default():
        made = tf.numpy_function(function, [tf.zeros([0], tf.int64)], types)
    given = made[0].op.get_attr("token").decode()
    if given != token:
        raise RuntimeError(
            f"TensorFlow {tf.__version__} names Python functions in another way: the workers' function is {given}, "
            f"not {token}. Use the version that dtj's image has"
        )
