"""The training set in each worker's memory, as the functions of the chief read it.

Before it serves, a worker writes the set as plain files into its workspace. The chief's functions contain relative
paths. TensorFlow opens them in the process that runs the function, which has made its workspace the current folder.
The same function therefore works on every worker, even if several workers share a machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from dtj_trainer import contract
from dtj_trainer.data.pictures import load_pictures
from dtj_trainer.train.whole_file import write_whole

if TYPE_CHECKING:
    from dtj_trainer.data.pictures import Pictures

_FACTS = f"{contract.DATA}/training-facts.int64"
_PIXELS = f"{contract.DATA}/training-pixels.uint8"
_LABELS = f"{contract.DATA}/training-labels.int32"


class Facts(NamedTuple):
    """The number of training examples, and the form of the pictures."""

    examples: int
    height: int
    width: int
    channels: int
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of each picture."""
        return self.height, self.width, self.channels


def channels_last(pictures: Pictures) -> np.ndarray:
    """Return the pixels as Keras takes them: uint8, (examples, height, width, channels)."""
    return np.ascontiguousarray(pictures.pixels.transpose(0, 2, 3, 1))


def write(uri: str) -> None:
    """Stage the data set at `uri` and write its training split for functions that run in this process.

    Makes the workspace the current folder. Raises DataError.
    """
    data = load_pictures(uri)
    root = Path(contract.root())
    (root / contract.DATA).mkdir(parents=True, exist_ok=True)
    channels, height, width = data.shape
    facts = Facts(len(data.train), height, width, channels, data.classes)
    write_whole(root / _PIXELS, channels_last(data.train).tofile)
    write_whole(root / _LABELS, data.train.labels.astype("<i4").tofile)
    write_whole(root / _FACTS, np.array(facts, "<i8").tofile)
    os.chdir(root)


def facts(coordinator: Any) -> Facts:
    """Return a worker's facts about its training set."""
    read = tf.function(_read_facts).get_concrete_function(tf.TensorSpec([], tf.string))
    scheduled = coordinator.schedule(read, args=(tf.constant(_FACTS),))
    coordinator.join()  # Returns when the result has arrived: see wait_until_arrived.
    return Facts(*scheduled.fetch().tolist())


def dataset() -> tf.data.Dataset:
    """Repeat one element endlessly: pixels (examples, height, width, channels), labels, the worker's number.

    For `create_per_worker_dataset`. The element stays in memory, and taking it copies nothing.
    """
    worker = tf.distribute.coordinator.experimental_get_current_worker_index()

    def load(names: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pixels = tf.io.decode_raw(tf.io.read_file(names[1]), tf.uint8)
        labels = tf.io.decode_raw(tf.io.read_file(names[2]), tf.int32)
        return tf.reshape(pixels, _read_facts(names[0])[:4]), labels

    # The file names are an element instead of constants. TensorFlow would evaluate reading a constant file name as a
    # constant: it would read the file on the chief and embed its content in the function.
    held = tf.data.Dataset.from_tensors([_FACTS, _PIXELS, _LABELS]).map(load).cache().repeat()
    options = tf.data.Options()
    options.autotune.enabled = False  # One element, computed once, needs no tuning.
    options.threading.private_threadpool_size = 1
    return held.map(lambda pixels, labels: (pixels, labels, worker)).with_options(options)


def _read_facts(name: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_raw(tf.io.read_file(name), tf.int64)
