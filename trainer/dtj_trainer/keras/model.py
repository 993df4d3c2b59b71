"""A picture classifier in Keras 3 on TensorFlow, whose ranks average their gradients by Horovod.

Keras 3 does not call the methods that Horovod's DistributedOptimizer overrides, so that `fit` would train each rank
alone. This module uses DistributedGradientTape over TensorFlow's variables in a training step of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from dtj_trainer.artifacts import checkpoints
from dtj_trainer.keras import models, saved_model
from dtj_trainer.keras.horovod_ranks import KerasRanks, rows_of
from dtj_trainer.keras.losses import cross_entropies, right_answers
from dtj_trainer.keras.optimizers import make_optimizer
from dtj_trainer.keras.seeds import draw_anew
from dtj_trainer.train.array_process import in_memory
from dtj_trainer.train.file_saver import FileSaver
from dtj_trainer.train.own_model import is_own
from dtj_trainer.train.protocols import PictureModel, Tested
from dtj_trainer.train.smallest_pass import smallest_share
from dtj_trainer.train.staged_arrays import StagedArrays
from dtj_trainer.train.state_file import Array, read_array, write_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.data.sharding import Share
    from dtj_trainer.train.options import TrainingOptions


_RUN = "run.json"
"""The entry of a checkpoint that is not a variable."""


class KerasModel(PictureModel[tuple[np.ndarray, np.ndarray]]):
    """See PictureModel. `shape` is height, width and channels of a picture."""

    def __init__(self, options: TrainingOptions, data: PictureSet, ranks: KerasRanks) -> None:
        self._ranks, self._seed, self._own = ranks, options.seed, is_own(options.model)
        channels, height, width = data.shape
        self.shape = (height, width, channels)
        self.network = models.build(options.model, self.shape, data.classes, options.seed)
        if self._own and checkpoints.newest() is None:
            size = smallest_share(len(data.train), options, ranks.data_size)
            saved_model.try_pass(self.network, size, self.shape, data.classes)
        self.optimizer = make_optimizer(options)
        self.optimizer.build(self.network.trainable_variables)
        self._sums = tf.Variable(tf.zeros(4, tf.float64), trainable=False)  # loss, right, examples, top 5
        self._step = _step(self.network, self.optimizer, self._sums, self.shape, options)
        self._test = _test(self.network, self.shape)

    def try_export(self) -> None:
        """See PictureModel."""
        if self._own:
            saved_model.try_save(self.network)

    def prepare(self, pixels: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See PictureModel."""
        return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), labels

    def train(self, data: tuple[np.ndarray, np.ndarray], share: Share, rate: float, step: int) -> None:
        """See Model."""
        draw_anew(self.network, self._seed, step, self._ranks.rank)
        self.optimizer.learning_rate = rate
        # An empty share passes one example of weight 0, which changes no gradient. Restore the statistics afterwards.
        kept = [] if share.count else [(each, each.numpy()) for each in statistics(self.network)]
        # With this scale, the average over the ranks is the mean over all examples of the step, even if ranks have
        # different counts.
        self._step(*data, np.int32(share.count), np.float32(self._ranks.size / share.total))
        for each, before in kept:
            each.assign(before)

    def take_sums(self) -> list[float]:
        """See Model."""
        sums: list[float] = self._sums.numpy().tolist()
        self._sums.assign(tf.zeros(4, tf.float64))
        return sums

    def test(self, pixels: np.ndarray, labels: np.ndarray) -> Tested:
        """See PictureModel."""
        return Tested(*map(float, self._test(*self.prepare(pixels, labels))))

    def average_statistics(self) -> None:
        """See Model. Uses a single exchange."""
        self._ranks.broadcast_variables(counters(self.network))
        variables = statistics(self.network)
        if not variables:
            return
        joined = tf.concat([tf.reshape(variable.value, [-1]) for variable in variables], 0)
        average = self._ranks.average(joined, "statistics")
        sizes = [variable.value.shape.num_elements() for variable in variables]
        for variable, values in zip(variables, tf.split(average, sizes), strict=True):
            variable.assign(tf.reshape(values, variable.shape))

    def fingerprints(self, *, weights_alone: bool) -> dict[str, str]:
        """See Model."""
        variables = self.network.trainable_variables if weights_alone else self.network.weights
        return {str(each.path): f"{each.dtype} {each.shape} {_checksum(each)}" for each in variables}


class KerasSaver(FileSaver):
    """See FileSaver."""

    file = "state.npz"
    _ranks: KerasRanks

    def __init__(
        self, options: TrainingOptions, data: PictureSet, model: KerasModel, ranks: KerasRanks
    ) -> None:
        super().__init__(options, data.train.blocks, ranks, data.class_names, data.train.stock)
        self._network, self._shape = model.network, model.shape
        self._classes, self._class_names = data.classes, data.class_names
        self._variables = {
            **{f"model/{each.path}": each for each in model.network.weights},
            **{f"optimizer/{each.path}": each for each in model.optimizer.variables},
        }
        self._staged = StagedArrays()

    def write_state(self, path: Path, run: dict[str, Any]) -> None:
        """See FileSaver."""
        write_arrays(path, itertools.chain(in_memory(_described(run)), self._arrays().items()))

    def prepare_saves(self) -> None:
        """See Saver."""
        if self._ranks.rank == 0 and self._options.async_save:
            self._staged.prepare(self._arrays())

    def stage(self, run: dict[str, Any]) -> Callable[[Path], None] | None:
        """See FileSaver."""
        described = _described(run)
        if self._staged.copy(self._arrays()) is None:
            return None
        return lambda path: self._staged.write(path, described)

    def close(self) -> None:
        """See Saver."""
        super().close()
        self._staged.close()

    def _arrays(self) -> dict[str, Array]:
        """Return the variables as a checkpoint stores them. Their values are read only when they are written."""
        return {name: _array(variable) for name, variable in self._variables.items()}

    def read_run(self, path: Path) -> dict[str, Any]:
        """See FileSaver."""
        with np.load(path, allow_pickle=False) as arrays:
            run: dict[str, Any] = json.loads(str(arrays[_RUN]))
        return run

    def load_state(self, path: Path) -> None:
        """See FileSaver."""
        with zipfile.ZipFile(path) as archive:
            wanted = {f"{name}.npy" for name in (_RUN, *self._variables)}
            if differing := sorted(wanted ^ {*archive.namelist()}):
                what = "lacks" if differing[0] in wanted else "also has"
                raise SystemExit(
                    f"the checkpoint {path.parent} {what} the variable {differing[0].removesuffix('.npy')}: give the "
                    "same --model and --optimizer, or start anew (artifacts.resume: Never)"
                )
            for name, variable in self._variables.items():
                for piece, values in read_array(archive, name):
                    if piece is None or len(values) == variable.shape[0]:
                        variable.assign(values)
                    else:
                        variable.value[piece].assign(values)

    def share_state(self) -> None:
        """See FileSaver."""
        self._ranks.broadcast_variables(self._variables)

    def digest(self) -> str:
        """See FileSaver."""
        digest = hashlib.sha256()
        for variable in sorted(self._network.weights, key=lambda variable: str(variable.path)):
            digest.update(variable.path.encode())
            for part in _parts(variable):
                digest.update(part.tobytes())
        return digest.hexdigest()

    def write_model(self, folder: Path, facts: Mapping[str, object]) -> None:
        """See FileSaver."""
        name, shape, classes = self._options.model, self._shape, self._classes
        saved_model.write(
            folder,
            self._network,
            name=name,
            shape=shape,
            classes=classes,
            facts=facts,
            class_names=self._class_names,
            orient=self._options.orient,
        )


def statistics(model: keras.Model) -> list[keras.Variable]:
    """Return the variables that each rank gathers from its own batches: BatchNorm's mean and variance."""
    return [variable for variable in model.non_trainable_variables if variable.dtype.startswith("float")]


def counters(model: keras.Model) -> dict[str, keras.Variable]:
    """Return the variables that passes may change, but that have no average: all ranks take rank 0's."""
    kept = [each for each in model.non_trainable_weights if not each.dtype.startswith("float")]
    return {f"counter/{each.path}": each for each in kept}


def _checksum(variable: keras.Variable) -> int:
    total = 0
    for part in _parts(variable):
        total = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, total)
    return total


def _step(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    sums: tf.Variable,
    shape: tuple[int, int, int],
    options: TrainingOptions,
) -> Callable[..., None]:
    """Compile a training step as one graph. Its signature lets a smaller last batch use the same graph.

    No function of the step has a Python condition on a tensor. AutoGraph would rewrite the source of all of them,
    Horovod's included, which takes most of the time before the first step.
    """
    # Add an L2 penalty to the gradients; adamw applies Keras's own `weight_decay` instead.
    penalty = 0.0 if options.optimizer == "adamw" else options.weight_decay
    variables = [variable.value for variable in model.trainable_variables]

    def step(pixels: tf.Tensor, labels: tf.Tensor, count: tf.Tensor, scale: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(tf.cast(pixels, tf.float32), training=True)[:count]
            wanted = labels[:count]
            loss = tf.reduce_sum(cross_entropies(wanted, logits, options.label_smoothing))
            scaled = loss * scale
            if own := model.losses:
                # The network's own losses are means over the examples, or depend on weights alone. Weighted by
                # `count`, both kinds count once a step.
                scaled += tf.add_n(own) * tf.cast(count, tf.float32) * scale
        gradients = hvd.DistributedGradientTape(tape, op=hvd.Average).gradient(scaled, variables)
        if options.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, options.clip_norm)
        penalised = [
            None if gradient is None else gradient + penalty * variable
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        optimizer.apply(penalised, model.trainable_variables)
        right, top5 = right_answers(wanted, logits)
        sums.assign_add(tf.stack([tf.cast(each, tf.float64) for each in (loss, right, count, top5)]))

    compiled: Callable[..., None] = tf.function(
        step,
        input_signature=[
            tf.TensorSpec([None, *shape], tf.uint8),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.float32),
        ],
        autograph=False,
    )
    return compiled


def _test(model: keras.Model, shape: tuple[int, int, int]) -> Callable[..., tuple[Any, Any, Any]]:
    """Compile a test as one graph; it returns what Tested has."""

    def test(pixels: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        logits = model(tf.cast(pixels, tf.float32), training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        right, top5 = right_answers(labels, logits)
        return right, tf.reduce_sum(losses), top5

    compiled: Callable[..., tuple[Any, Any, Any]] = tf.function(
        test,
        input_signature=[tf.TensorSpec([None, *shape], tf.uint8), tf.TensorSpec([None], tf.int64)],
        autograph=False,
    )
    return compiled


def _described(run: dict[str, Any]) -> dict[str, np.ndarray]:
    return {_RUN: np.array(json.dumps(run))}


def _array(variable: keras.Variable) -> Array:
    """Return a variable as a checkpoint stores it."""
    held = variable.value
    return Array(tuple(held.shape), np.dtype(held.dtype.as_numpy_dtype), _parts(variable))


def _parts(variable: keras.Variable) -> Iterator[np.ndarray]:
    """Yield the values of a variable: from the CPU's memory without a copy, from a GPU in pieces."""
    held = variable.value
    if "CPU" in held.device:
        yield np.asarray(memoryview(held.read_value()))
        return
    for piece in rows_of(held) if held.shape.rank else [...]:
        yield held[piece].numpy()
