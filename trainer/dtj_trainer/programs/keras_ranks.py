"""What the ranks of a Horovod job with Keras do together, besides averaging gradients.

Horovod takes TensorFlow's variables, which Keras 3 keeps inside its own: hence `value` throughout.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
import tensorflow as tf

from dtj_trainer.programs.learner import same_on_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import keras


def total(values: Sequence[float], name: str) -> list[float]:
    """The sum of each value over all ranks, bit for bit the same on each of them."""
    summed = hvd.allreduce(tf.constant(values, tf.float64), op=hvd.Sum, name=name)
    result: list[float] = summed.numpy().tolist()
    return result


def broadcast_state(
    variables: Mapping[str, keras.Variable], saved: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Give every rank the variables of rank 0, or what rank 0 has loaded: `saved`, None on the others."""
    state: dict[str, Any] | None = hvd.broadcast_object(saved, root_rank=0, name="checkpoint")
    if state is not None:
        for name, variable in variables.items():
            variable.assign(state["variables"][name])
    hvd.broadcast_variables([variable.value for variable in variables.values()], root_rank=0)
    return state


def statistics(model: keras.Model) -> list[keras.Variable]:
    """What is not trained but gathered from each rank's own batches: BatchNorm's mean and variance."""
    return [variable for variable in model.non_trainable_variables if variable.dtype.startswith("float")]


def average_statistics(model: keras.Model) -> None:
    """Make the `statistics` the same on all ranks: their average."""
    for variable in statistics(model):
        average = hvd.allreduce(variable.value, op=hvd.Average, name=f"statistics.{variable.path}")
        variable.assign(average)


def weights_digest(model: keras.Model) -> str:
    """The sha256 of all weights and statistics, byte for byte, in the order of their names."""
    digest = hashlib.sha256()
    for variable in sorted(model.variables, key=lambda variable: str(variable.path)):
        digest.update(variable.path.encode())
        digest.update(variable.numpy().tobytes())
    return digest.hexdigest()


def check_identical(model: keras.Model) -> str:
    """The digest of this rank's weights; raises RanksDiverged, on every rank, when they are not the same on all."""
    mine = weights_digest(model)
    same_on_all(hvd.allgather_object(mine, name="weights"))
    return mine
