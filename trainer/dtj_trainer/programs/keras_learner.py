"""A picture classifier in Keras 3 on TensorFlow, whose ranks average their gradients by Horovod.

Keras 3 calls nothing of what Horovod's DistributedOptimizer overrides, so `fit` would train each rank
alone. What is right is DistributedGradientTape over TensorFlow's own variables, in a step of our own.
"""

from __future__ import annotations

import itertools
import json
import zipfile
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from dtj_trainer.models import keras_pictures
from dtj_trainer.programs import keras_ranks, keras_saved_model
from dtj_trainer.programs.state_file import Array, read_array, write_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.data.sharding import Share
    from dtj_trainer.programs.options import Options

_RUN = "run.json"
"""The entry of a checkpoint that is no variable."""


class KerasLearner:
    """See Learner. Make it after `hvd.init`."""

    state_file = "state.npz"

    def __init__(self, options: Options, data: PictureSet) -> None:
        self.rank, self.ranks = hvd.rank(), hvd.size()
        self._name, self._classes = options.model, data.classes
        channels, height, width = data.shape
        self._shape = (height, width, channels)
        self._model = keras_pictures.build(options.model, self._shape, data.classes, options.seed)
        self._optimizer = _optimizer(options)
        self._optimizer.build(self._model.trainable_variables)
        self._variables = {
            **{f"model/{each.path}": each for each in self._model.variables},
            **{f"optimizer/{each.path}": each for each in self._optimizer.variables},
        }
        self._sums = tf.Variable(tf.zeros(3, tf.float64), trainable=False)  # loss, right, examples
        self._step = _step(self._model, self._optimizer, self._sums, self._shape, options.weight_decay)
        self._test = _test(self._model, self._shape)

    def prepare(self, pixels: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See Learner."""
        return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), labels

    def train(self, data: tuple[np.ndarray, np.ndarray], share: Share, rate: float, step: int) -> None:
        """See Learner."""
        del step  # No layer of these networks draws.
        self._optimizer.learning_rate = rate
        # What counts for nothing enters no statistics either.
        kept = [] if share.count else [(each, each.numpy()) for each in keras_ranks.statistics(self._model)]
        # Averaged over the ranks, this is the mean over the whole step's examples, also where the
        # ranks have not all equally many.
        self._step(*data, np.int32(share.count), np.float32(self.ranks / share.total))
        for each, before in kept:
            each.assign(before)

    def take_sums(self) -> list[float]:
        """See Learner."""
        sums: list[float] = self._sums.numpy().tolist()
        self._sums.assign(tf.zeros(3, tf.float64))
        return sums

    def test(self, pixels: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """See Learner."""
        right, loss = self._test(*self.prepare(pixels, labels))
        return float(right), float(loss)

    def average_statistics(self) -> None:
        """See Learner."""
        keras_ranks.average_statistics(self._model)

    def total(self, values: Sequence[float], name: str) -> list[float]:
        """See Learner."""
        return keras_ranks.total(values, name)

    def barrier(self) -> None:
        """See Learner."""
        keras_ranks.total([0.0], "barrier")  # Horovod's own is not there for TensorFlow.

    def check_identical(self) -> str:
        """See Learner."""
        return keras_ranks.check_identical(self._model)

    def write_state(self, path: Path, run: dict[str, Any]) -> None:
        """See Learner."""
        about = np.array(json.dumps(run))
        arrays = ((name, _array(variable)) for name, variable in self._variables.items())
        write_arrays(path, itertools.chain([(_RUN, Array((), about.dtype, [about]))], arrays))

    def read_run(self, path: Path) -> dict[str, Any]:
        """See Learner."""
        with np.load(path, allow_pickle=False) as arrays:
            run: dict[str, Any] = json.loads(str(arrays[_RUN]))
        return run

    def load_state(self, path: Path) -> None:
        """See Learner."""
        with zipfile.ZipFile(path) as archive:
            if {*archive.namelist()} != {f"{name}.npy" for name in (_RUN, *self._variables)}:
                raise SystemExit(
                    f"the checkpoint {path.parent} was written with another --optimizer: give the same, "
                    "or start anew (artifacts.resume: Never)"
                )
            for name, variable in self._variables.items():
                for piece, values in read_array(archive, name):
                    if piece is None or len(values) == variable.shape[0]:
                        variable.assign(values)
                    else:
                        variable.value[piece].assign(values)

    def broadcast(self, value: Any) -> Any:
        """See Learner."""
        return keras_ranks.broadcast(value)

    def share_state(self) -> None:
        """See Learner."""
        keras_ranks.share_state(self._variables)

    def write_model(self, folder: Path, facts: dict[str, object]) -> None:
        """See Learner."""
        keras_saved_model.write(
            folder, self._model, name=self._name, shape=self._shape, classes=self._classes, facts=facts
        )


def _array(variable: keras.Variable) -> Array:
    """A variable as a checkpoint holds it, read when it is written."""
    held = variable.value
    parts = (held[piece].numpy() for piece in (keras_ranks.rows_of(held) if held.shape.rank else [...]))
    return Array(tuple(held.shape), np.dtype(held.dtype.as_numpy_dtype), parts)


def _step(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    sums: tf.Variable,
    shape: tuple[int, int, int],
    weight_decay: float,
) -> Callable[..., None]:
    """A training step as one graph; with a signature, so that a last, smaller batch is no other graph."""
    variables = [variable.value for variable in model.trainable_variables]

    def step(pixels: tf.Tensor, labels: tf.Tensor, count: tf.Tensor, scale: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(tf.cast(pixels, tf.float32), training=True)[:count]
            wanted = labels[:count]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits)
            loss = tf.reduce_sum(losses)
            scaled = loss * scale
        gradients = hvd.DistributedGradientTape(tape, op=hvd.Average).gradient(scaled, variables)
        # As an L2 penalty, which is not what the optimizers' own `weight_decay` does.
        penalised = [
            gradient + weight_decay * variable
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        optimizer.apply(penalised, model.trainable_variables)
        right = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), wanted), tf.float64))
        sums.assign_add(tf.stack([tf.cast(loss, tf.float64), right, tf.cast(count, tf.float64)]))

    compiled: Callable[..., None] = tf.function(
        step,
        input_signature=[
            tf.TensorSpec([None, *shape], tf.uint8),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.float32),
        ],
    )
    return compiled


def _test(model: keras.Model, shape: tuple[int, int, int]) -> Callable[..., tuple[Any, Any]]:
    """Right answers and the sum of the losses, as one graph."""

    def test(pixels: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = model(tf.cast(pixels, tf.float32), training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.int32)), tf.reduce_sum(losses)

    compiled: Callable[..., tuple[Any, Any]] = tf.function(
        test, input_signature=[tf.TensorSpec([None, *shape], tf.uint8), tf.TensorSpec([None], tf.int64)]
    )
    return compiled


def _optimizer(options: Options) -> keras.optimizers.Optimizer:
    if options.optimizer == "adam":
        return keras.optimizers.Adam(options.lr, epsilon=1e-8)
    return keras.optimizers.SGD(options.lr, momentum=options.momentum)
