"""Optimizers that run where the variables are: one operation for each parameter server, under the variable's lock.

Keras's optimizers are unsuitable: with a coordinator they lose updates, because they read, compute and assign in
separate steps, and they transfer their slots to the worker and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import tensorflow as tf

from dtj_trainer.ps.shards import ShardedVector

if TYPE_CHECKING:
    from dtj_trainer.ps.options import Options


class Optimizer(Protocol):
    """An optimizer with its slots. Each slot is a vector as long as the variables' vector, on the same servers."""

    name: str
    slots: dict[str, ShardedVector]

    def apply(self, gradient: tf.Tensor, step: tf.Tensor) -> list[tf.Operation]:
        """Update the variables by the gradient (a vector) of the global step `step`, from 0; return the
        operations.
        """


class Momentum:
    """Gradient descent with momentum, as in Keras: velocity = momentum * velocity - rate * gradient."""

    name = "sgd"

    def __init__(self, variables: ShardedVector, *, rate: float, momentum: float) -> None:
        self._variables = variables
        self._rate = rate
        self._momentum = momentum
        zeros = np.zeros(sum(variables.sizes), np.float32)
        self.slots = {"momentum": ShardedVector(zeros, len(variables.sizes), "momentum")}

    def apply(self, gradient: tf.Tensor, step: tf.Tensor) -> list[tf.Operation]:  # noqa: ARG002
        """See Optimizer."""
        return [
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=slot.handle,
                lr=self._rate,
                grad=part,
                momentum=self._momentum,
                use_locking=True,
            )
            for variable, slot, part in zip(
                self._variables.pieces,
                self.slots["momentum"].pieces,
                self._variables.split(gradient),
                strict=True,
            )
        ]


class Adam:
    """Kingma and Ba (2014), with the paper's betas, and epsilon 1e-7 as in Keras."""

    name = "adam"
    _BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-7

    def __init__(self, variables: ShardedVector, *, rate: float) -> None:
        self._variables = variables
        self._rate = rate
        zeros = np.zeros(sum(variables.sizes), np.float32)
        self.slots = {name: ShardedVector(zeros, len(variables.sizes), name) for name in ("mean", "square")}

    def apply(self, gradient: tf.Tensor, step: tf.Tensor) -> list[tf.Operation]:
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
                lr=self._rate,
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
                self._variables.split(gradient),
                strict=True,
            )
        ]


def make(options: Options, variables: ShardedVector) -> Optimizer:
    """Make the optimizer that the user chose."""
    if options.optimizer == "adam":
        return Adam(variables, rate=options.lr)
    return Momentum(variables, rate=options.lr, momentum=options.momentum)
