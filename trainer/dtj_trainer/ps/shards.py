"""The model's variables as vectors on the parameter servers.

All variables of a model are concatenated to one vector, which is cut into as many equal pieces as there are parameter
servers. Reading or updating the vector is one transfer and one operation for each server, whatever the number of
layers, and the servers share the load equally.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from dtj_trainer.train.state_file import Array

if TYPE_CHECKING:
    from collections.abc import Sequence


class Layout:
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
