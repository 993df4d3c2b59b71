"""What the ranks of a Horovod job with Keras do together, besides averaging gradients.

Horovod takes TensorFlow's variables, which Keras 3 keeps inside its own: hence `value` throughout.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
import tensorflow as tf

from dtj_trainer.programs.learner import same_on_all
from dtj_trainer.programs.pieces import PIECE_BYTES, groups, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import keras


def total(values: Sequence[float], name: str) -> list[float]:
    """The sum of each value over all ranks, bit for bit the same on each of them."""
    summed = hvd.allreduce(tf.constant(values, tf.float64), op=hvd.Sum, name=name)
    result: list[float] = summed.numpy().tolist()
    return result


def broadcast(value: Any) -> Any:
    """What rank 0 gives, on every rank. For small objects: `value` is pickled, and copied several times."""
    return hvd.broadcast_object(value, root_rank=0, name="object")


def share_state(variables: Mapping[str, keras.Variable]) -> None:
    """Give every rank the variables of rank 0, a few or a piece of one at a time."""
    small = []
    for name, variable in variables.items():
        held = variable.value
        if _bytes(held) <= PIECE_BYTES:
            small.append(held)
            continue
        for piece in rows_of(held):
            part = hvd.broadcast(held[piece], root_rank=0, name=f"{name}.{piece.start}")
            held[piece].assign(part)
    for together in groups([_bytes(held) for held in small]):
        hvd.broadcast_variables(small[together], root_rank=0)


def rows_of(held: tf.Variable) -> Iterator[slice]:
    """A variable of at least one axis in pieces along the first."""
    return pieces(held.shape[0], held.dtype.size * held.shape[1:].num_elements())


def _bytes(held: tf.Variable) -> int:
    size: int = held.dtype.size * held.shape.num_elements()
    return size


def statistics(model: keras.Model) -> list[keras.Variable]:
    """What is not trained but gathered from each rank's own batches: BatchNorm's mean and variance."""
    return [variable for variable in model.non_trainable_variables if variable.dtype.startswith("float")]


def average_statistics(model: keras.Model) -> None:
    """Make the `statistics` the same on all ranks: their average, by a single exchange."""
    variables = statistics(model)
    if not variables:
        return
    joined = tf.concat([tf.reshape(variable.value, [-1]) for variable in variables], 0)
    average = hvd.allreduce(joined, op=hvd.Average, name="statistics")
    sizes = [variable.value.shape.num_elements() for variable in variables]
    for variable, values in zip(variables, tf.split(average, sizes), strict=True):
        variable.assign(tf.reshape(values, variable.shape))


def weights_digest(model: keras.Model) -> str:
    """The sha256 of all weights and statistics, byte for byte, in the order of their names."""
    digest = hashlib.sha256()
    for variable in sorted(model.variables, key=lambda variable: str(variable.path)):
        digest.update(variable.path.encode())
        held = variable.value
        for piece in rows_of(held) if held.shape.rank else [...]:
            digest.update(held[piece].numpy().tobytes())
    return digest.hexdigest()


def check_identical(model: keras.Model) -> str:
    """The digest of this rank's weights; raises RanksDiverged, on every rank, when they are not the same on all."""
    mine = weights_digest(model)
    same_on_all(hvd.allgather_object(mine, name="weights"))
    return mine
