"""The state of a training on the parameter servers, and its transfer from and to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from dtj_trainer.ps import optimizers
from dtj_trainer.ps.shards import Layout, ShardedVector, ps_device
from dtj_trainer.train.state_file import Array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import keras

    from dtj_trainer.ps.options import Options


class Parameters:
    """The variables of `model`, the optimizer's slots and the global step, on `ps` parameter servers.

    The model itself is used as a function of variables that it is given.
    """

    def __init__(self, model: keras.Model, options: Options, ps: int) -> None:
        self.trainable_layout = Layout([variable.shape for variable in model.trainable_variables])
        self.other_layout = Layout([variable.shape for variable in model.non_trainable_weights])
        self.trainable = ShardedVector(_joined(model.trainable_variables), ps, "trainable")
        # Weights that are gathered instead of trained, such as BatchNorm's statistics. Many models have none.
        self.other = (
            ShardedVector(_joined(model.non_trainable_weights), ps, "other")
            if self.other_layout.total
            else None
        )
        self.optimizer = optimizers.make(options, self.trainable)
        with tf.device(ps_device(0)):
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")

    def read_other(self) -> tf.Tensor:
        """Read the vector of the variables that are not trained. Call it within a tf.function."""
        return self.other.read() if self.other else tf.zeros([0])

    def assign_other(self, vector: tf.Tensor) -> list[tf.Operation]:
        """Overwrite the variables that are not trained; return the operations."""
        return self.other.assign(vector) if self.other else []

    def vectors(self) -> dict[str, np.ndarray]:
        """Copy everything to this process, as vectors by name. Consistent only while no worker updates."""
        held = {name: vector.value() for name, vector in self._vectors().items()}
        return held | {"step": np.array(int(self.step.numpy()), np.int64)}

    def described(self) -> dict[str, Array]:
        """Describe what `vectors` copies. Reading the parts of a vector copies it, while no worker updates."""
        held = {name: vector.described() for name, vector in self._vectors().items()}
        step = (np.asarray(self.step.numpy()) for _ in range(1))
        return held | {"step": Array((), np.dtype(np.int64), step)}

    def restore(self, held: Mapping[str, np.ndarray]) -> None:
        """Restore a result of `vectors`, also from another number of servers.

        Raises KeyError or ValueError for another model or optimizer.
        """
        for name, vector in self._vectors().items():
            values = held[name]
            if len(values) != sum(vector.sizes):
                raise ValueError(f"{name} has {len(values)} values instead of {sum(vector.sizes)}")
            vector.assign(values)
        self.step.assign(int(held["step"]))

    def _vectors(self) -> dict[str, ShardedVector]:
        named = {"trainable": self.trainable}
        if self.other:
            named["other"] = self.other
        return named | {f"slot-{name}": slot for name, slot in self.optimizer.slots.items()}


def set_weights(model: keras.Model, held: Mapping[str, np.ndarray]) -> None:
    """Set the variables of a model in this process to `held`, from a checkpoint or from `Parameters.vectors`."""
    for variables, name in (
        (model.trainable_variables, "trainable"),
        (model.non_trainable_weights, "other"),
    ):
        layout = Layout([variable.shape for variable in variables])
        if layout.total:
            for variable, value in zip(variables, layout.split_array(held[name]), strict=True):
                # A mean of equal whole numbers may miss them by rounding.
                variable.assign(value if variable.dtype.startswith("float") else np.round(value))


def _joined(variables: Sequence[Any]) -> np.ndarray:
    return np.concatenate([np.asarray(variable).reshape(-1) for variable in variables])
