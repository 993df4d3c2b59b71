"""The state of a training on the parameter servers, and its transfer from and to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from dtj_trainer.train.state_file import Array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import keras

    from dtj_trainer.ps.options import ServerOptions


# The model's variables as vectors on the parameter servers.
#
# All variables of a model are concatenated to one vector, which is cut into as many equal pieces as there are
# parameter servers. Reading or updating the vector is one transfer and one operation for each server, whatever the
# number of layers, and the servers share the load equally.


class VectorLayout:
    """The position of each of `shapes` in their common vector."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self.shapes = [tuple(shape) for shape in shapes]
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.total = sum(self.sizes)

    def split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """Split the vector into tensors of the shapes."""
        if not self.shapes:
            return []
        parts = tf.split(vector, self.sizes)
        return [tf.reshape(part, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def join(self, tensors: Sequence[Any]) -> tf.Tensor:
        """Join the tensors to a float32 vector."""
        if not self.shapes:
            return tf.zeros([0])
        return tf.concat([tf.cast(tf.reshape(tensor, [-1]), tf.float32) for tensor in tensors], 0)

    def split_array(self, vector: np.ndarray) -> list[np.ndarray]:
        """Split as `split` does, in numpy."""
        parts = np.split(vector, np.cumsum(self.sizes)[:-1]) if self.shapes else []
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def cuts(total: int, pieces: int) -> list[int]:
    """Return the sizes of `pieces` pieces of `total` values. Sizes differ by one value at most."""
    return [total * (piece + 1) // pieces - total * piece // pieces for piece in range(pieces)]


class ShardedVector:
    """A float32 vector with a piece on each of `ps` parameter servers."""

    def __init__(self, initial: np.ndarray, ps: int, name: str) -> None:
        self.sizes = cuts(len(initial), ps)
        self.pieces: list[tf.Variable] = []
        for server, values in enumerate(np.split(initial, np.cumsum(self.sizes)[:-1])):
            with tf.device(ps_device(server)):
                self.pieces.append(tf.Variable(values.astype(np.float32), trainable=False, name=name))

    def read(self) -> tf.Tensor:
        """Read the whole vector; within a tf.function, on the device that runs it."""
        return tf.concat([piece.read_value() for piece in self.pieces], 0)

    def split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """Split a vector of the same length into the parts of the pieces."""
        return list(tf.split(vector, self.sizes))

    def assign(self, vector: Any) -> list[tf.Operation]:
        """Overwrite the whole vector; return the operations."""
        parts = self.split(tf.convert_to_tensor(vector, tf.float32))
        return [
            tf.raw_ops.AssignVariableOp(resource=piece.handle, value=part)
            for piece, part in zip(self.pieces, parts, strict=True)
        ]

    def described(self) -> Array:
        """Describe the vector for a checkpoint. Reading its parts copies the values to this process."""
        values = (np.asarray(memoryview(piece.read_value())) for piece in self.pieces)
        return Array((sum(self.sizes),), np.dtype(np.float32), values)

    def value(self) -> np.ndarray:
        """Copy the current vector to this process."""
        return np.concatenate(list(self.described().parts))


def ps_device(server: int) -> str:
    """Return the CPU device of a parameter server."""
    return f"/job:ps/replica:0/task:{server}/device:CPU:0"


# Optimizers that run where the variables are: one operation for each parameter server, under the variable's lock.
#
# Keras's optimizers are unsuitable: with a coordinator they lose updates, because they read, compute and assign in
# separate steps, and they transfer their slots to the worker and back.


class Optimizer(Protocol):
    """An optimizer with its slots. Each slot is a vector as long as the variables' vector, on the same servers."""

    name: str
    slots: dict[str, ShardedVector]

    def apply(self, gradient: tf.Tensor, step: tf.Tensor, rate: tf.Tensor) -> list[tf.Operation]:
        """Update the variables by the gradient (a vector) of the global step `step`, from 0, at this learning rate;
        return the operations.
        """


class Penalty(NamedTuple):
    """What is done to a gradient before the update, as in the other programs: it is clipped, then decay is added.

    `clip_norm`: the largest norm of the gradient; None for any. `decay`: the factor of an L2 penalty on the
    variables, with the values that their server has at the update.
    """

    clip_norm: float | None
    decay: float

    def parts(self, variables: ShardedVector, gradient: tf.Tensor) -> list[tf.Tensor]:
        """Return the gradient of each piece of the variables."""
        if self.clip_norm is not None:
            gradient = tf.clip_by_norm(gradient, self.clip_norm)
        parts = variables.split(gradient)
        if not self.decay:
            return parts
        decayed = []
        for piece, part in zip(variables.pieces, parts, strict=True):
            # Compute on the server of the piece, so that its variables are not transferred.
            with tf.device(piece.device):
                decayed.append(part + self.decay * piece.read_value())
        return decayed


class Momentum:
    """Gradient descent with momentum, as in PyTorch: velocity = momentum * velocity + gradient."""

    name = "sgd"

    def __init__(self, variables: ShardedVector, penalty: Penalty, *, momentum: float) -> None:
        self._variables, self._penalty = variables, penalty
        self._momentum = momentum
        zeros = np.zeros(sum(variables.sizes), np.float32)
        self.slots = {"momentum": ShardedVector(zeros, len(variables.sizes), "momentum")}

    def apply(self, gradient: tf.Tensor, step: tf.Tensor, rate: tf.Tensor) -> list[tf.Operation]:
        """See Optimizer."""
        del step
        return [
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=slot.handle,
                lr=rate,
                grad=part,
                momentum=self._momentum,
                use_locking=True,
            )
            for variable, slot, part in zip(
                self._variables.pieces,
                self.slots["momentum"].pieces,
                self._penalty.parts(self._variables, gradient),
                strict=True,
            )
        ]


class Adam:
    """Kingma and Ba (2014), with the paper's betas, and epsilon 1e-7 as in Keras."""

    name = "adam"
    _BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-7

    def __init__(self, variables: ShardedVector, penalty: Penalty) -> None:
        self._variables, self._penalty = variables, penalty
        zeros = np.zeros(sum(variables.sizes), np.float32)
        self.slots = {name: ShardedVector(zeros, len(variables.sizes), name) for name in ("mean", "square")}

    def apply(self, gradient: tf.Tensor, step: tf.Tensor, rate: tf.Tensor) -> list[tf.Operation]:
        """See Optimizer."""
        # Derive the powers of beta from the global step. Variables for the powers could get out of step with it.
        done = tf.cast(step + 1, tf.float32)
        return [
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=mean.handle,
                v=square.handle,
                beta1_power=tf.pow(self._BETA1, done),
                beta2_power=tf.pow(self._BETA2, done),
                lr=rate,
                beta1=self._BETA1,
                beta2=self._BETA2,
                epsilon=self._EPSILON,
                grad=part,
                use_locking=True,
            )
            for variable, mean, square, part in zip(
                self._variables.pieces,
                self.slots["mean"].pieces,
                self.slots["square"].pieces,
                self._penalty.parts(self._variables, gradient),
                strict=True,
            )
        ]


def make_optimizer(options: ServerOptions, variables: ShardedVector) -> Optimizer:
    """Make the optimizer that the user chose."""
    penalty = Penalty(options.clip_norm, options.weight_decay)
    if options.optimizer == "adam":
        return Adam(variables, penalty)
    return Momentum(variables, penalty, momentum=options.momentum)


class Parameters:
    """The variables of `model`, the optimizer's slots and the global step, on `ps` parameter servers.

    `model` serves as a function: the caller passes the values of all variables.
    """

    def __init__(self, model: keras.Model, options: ServerOptions, ps: int) -> None:
        self.trainable_layout = VectorLayout([variable.shape for variable in model.trainable_variables])
        self.other_layout = VectorLayout([variable.shape for variable in model.non_trainable_weights])
        self.trainable = ShardedVector(_joined(model.trainable_variables), ps, "trainable")
        # `other` has weights that are gathered instead of trained, such as BatchNorm's statistics. Many models have
        # none.
        self.other = (
            ShardedVector(_joined(model.non_trainable_weights), ps, "other")
            if self.other_layout.total
            else None
        )
        self.optimizer = make_optimizer(options, self.trainable)
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
        """Describe the vectors of `vectors`. Read their parts, which are copies, only while no worker updates."""
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
                raise ValueError(f"the vector {name} has {len(values)} values instead of {sum(vector.sizes)}")
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
        layout = VectorLayout([variable.shape for variable in variables])
        if layout.total:
            for variable, value in zip(variables, layout.split_array(held[name]), strict=True):
                # Whole numbers were averaged over workers as floats: undo the rounding errors.
                variable.assign(value if variable.dtype.startswith("float") else np.round(value))


def _joined(variables: Sequence[Any]) -> np.ndarray:
    return np.concatenate([np.asarray(variable).reshape(-1) for variable in variables])
