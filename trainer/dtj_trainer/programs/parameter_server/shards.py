"""The model's variables as vectors on the parameter servers.

All of a model's variables, one after the other, are one vector, cut into as many equal pieces as there
are parameter servers: reading or updating it is one transfer and one operation a server, however many
layers the model has, and the servers have equally much to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence


class Layout:
    """Where each of `shapes` lies in the vector that holds them all."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self.shapes = [tuple(shape) for shape in shapes]
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.total = sum(self.sizes)

    def split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """The vector's values as tensors of the shapes."""
        if not self.shapes:
            return []
        parts = tf.split(vector, self.sizes)
        return [tf.reshape(part, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def join(self, tensors: Sequence[Any]) -> tf.Tensor:
        """The vector of these tensors, float32."""
        if not self.shapes:
            return tf.zeros([0])
        return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)

    def split_array(self, vector: np.ndarray) -> list[np.ndarray]:
        """As `split`, for numpy."""
        parts = np.split(vector, np.cumsum(self.sizes)[:-1]) if self.shapes else []
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def cuts(total: int, pieces: int) -> list[int]:
    """The sizes of `pieces` pieces of `total` values, equal but for one value."""
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
        """The whole vector; in a function, on the device that runs it."""
        return tf.concat([piece.read_value() for piece in self.pieces], 0)

    def split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """The parts of a vector of the same length that belong to each piece."""
        return list(tf.split(vector, self.sizes))

    def assign(self, vector: Any) -> list[tf.Operation]:
        """Overwrite the whole vector; the operations that do it."""
        parts = self.split(tf.convert_to_tensor(vector, tf.float32))
        return [
            tf.raw_ops.AssignVariableOp(resource=piece.handle, value=part)
            for piece, part in zip(self.pieces, parts, strict=True)
        ]

    def value(self) -> np.ndarray:
        """The vector as it is now, copied to this process."""
        return np.concatenate([piece.numpy() for piece in self.pieces])


def ps_device(server: int) -> str:
    """The processors of a parameter server."""
    return f"/job:ps/replica:0/task:{server}/device:CPU:0"
