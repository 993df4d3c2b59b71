"""Optimizers that run where the variables are: one operation for each parameter server, under the variable's lock.

Keras's optimizers are unsuitable: with a coordinator they lose updates, because they read, compute and assign in
separate steps, and they transfer their slots to the worker and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from dtj_trainer.ps.shards import ShardedVector

if TYPE_CHECKING:
    from dtj_trainer.ps.options import Options


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

    `clip_norm`: the largest norm of the gradient; None for any. `decay`: of an L2 penalty on the variables as they
    are on their server.
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
            with tf.device(piece.device):  # The variables stay on their server.
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
        # Derive the powers from the global step. Variables of their own would not be updated together with it.
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


def make(options: Options, variables: ShardedVector) -> Optimizer:
    """Make the optimizer that the user chose."""
    penalty = Penalty(options.clip_norm, options.weight_decay)
    if options.optimizer == "adam":
        return Adam(variables, penalty)
    return Momentum(variables, penalty, momentum=options.momentum)
