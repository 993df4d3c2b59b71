"""The exchange between the ranks of a Keras training by Horovod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import horovod.tensorflow as hvd
import tensorflow as tf

from dtj_trainer.train.horovod_ranks import HorovodRanks
from dtj_trainer.train.pieces import PIECE_BYTES, groups, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import keras


class KerasRanks(HorovodRanks):
    """The ranks of a Keras job. Horovod needs TensorFlow's variable, which is the `value` of a Keras variable."""

    def __init__(self) -> None:
        super().__init__(hvd, tf.constant)

    def broadcast_variables(self, variables: Mapping[str, keras.Variable]) -> None:
        """Overwrite the variables by rank 0's, in groups or in pieces of limited size."""
        small = []
        for name, variable in variables.items():
            held = variable.value
            if _bytes(held) <= PIECE_BYTES:
                small.append(held)
                continue
            for piece in rows_of(held):
                part = self._hvd.broadcast(held[piece], root_rank=0, name=f"{name}.{piece.start}")
                held[piece].assign(part)
        for together in groups([_bytes(held) for held in small]):
            self._hvd.broadcast_variables(small[together], root_rank=0)


def rows_of(held: tf.Variable) -> Iterator[slice]:
    """Divide a variable of at least one axis into pieces along the first axis."""
    return pieces(held.shape[0], held.dtype.size * held.shape[1:].num_elements())


def _bytes(held: tf.Variable) -> int:
    size: int = held.dtype.size * held.shape.num_elements()
    return size
