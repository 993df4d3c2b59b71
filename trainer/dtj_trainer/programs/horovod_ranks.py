"""The exchange between the ranks of a Horovod job. Imports PyTorch or TensorFlow only for ranks that use it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from dtj_trainer.programs.pieces import PIECE_BYTES, groups, pieces
from dtj_trainer.programs.protocols import Ranks
from dtj_trainer.programs.tensor_ranks import GradientAveraging, TensorRanks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import keras
    import tensorflow as tf
    import torch


class HorovodRanks(Ranks):
    """See Ranks. Call `hvd.init` first. `hvd` is the module horovod.torch or horovod.tensorflow.

    `to_tensor` converts an array to a tensor of that framework.
    """

    def __init__(self, hvd: Any, to_tensor: Callable[[np.ndarray], Any]) -> None:
        self.rank, self.size = hvd.rank(), hvd.size()
        self._hvd = hvd
        self._to_tensor = to_tensor

    def total(self, values: Sequence[float], name: str) -> list[float]:
        """See Ranks."""
        tensor = self._to_tensor(np.array(values, np.float64))
        summed: list[float] = np.asarray(self._hvd.allreduce(tensor, op=self._hvd.Sum, name=name)).tolist()
        return summed

    def average(self, tensor: Any, name: str) -> Any:
        """Average a tensor over all ranks."""
        return self._hvd.allreduce(tensor, op=self._hvd.Average, name=name)

    def broadcast(self, value: Any) -> Any:
        """See Ranks."""
        return self._hvd.broadcast_object(value, root_rank=0, name="object")

    def gather(self, value: Any, name: str) -> list[Any]:
        """See Ranks."""
        gathered: list[Any] = self._hvd.allgather_object(value, name=name)
        return gathered


class TorchRanks(HorovodRanks, TensorRanks):
    """See TensorRanks."""

    def __init__(self) -> None:
        import horovod.torch as hvd
        import torch

        super().__init__(hvd, torch.from_numpy)

    def averaging(self, network: torch.nn.Module, optimizer: Any, passes: int) -> GradientAveraging:
        """See TensorRanks."""
        named = network.named_parameters()
        averaged = self._hvd.DistributedOptimizer(
            optimizer, named_parameters=named, backward_passes_per_step=passes, op=self._hvd.Average
        )
        return _DistributedOptimizer(network, averaged)

    def overwrite(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See TensorRanks."""
        under_way: list[int] = []
        size = 0
        for name, tensor in tensors.items():
            flat = tensor.detach().contiguous().view(-1)
            for piece in pieces(flat.numel(), flat.element_size()):
                part = flat[piece]
                named = f"{name}.{piece.start}"
                under_way.append(self._hvd.broadcast_async_(part, root_rank=0, name=named))
                size += part.numel() * part.element_size()
                if size >= PIECE_BYTES:  # On GPUs, each transfer may hold a copy in host memory.
                    self._wait(under_way)
                    size = 0
            if flat.data_ptr() != tensor.data_ptr():
                self._wait(under_way)
                tensor.detach().copy_(flat.view(tensor.shape))
        self._wait(under_way)

    def _wait(self, handles: list[int]) -> None:
        while handles:
            self._hvd.synchronize(handles.pop(0))


class _DistributedOptimizer(GradientAveraging):
    """See GradientAveraging. The optimizer is Horovod's; it counts the passes of a step by itself."""

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """See GradientAveraging."""
        self.optimizer.synchronize()
        with self.optimizer.skip_synchronize():
            yield


class KerasRanks(HorovodRanks):
    """The ranks of a Keras job. Horovod needs TensorFlow's variable, which is the `value` of a Keras variable."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        super().__init__(hvd, tf.constant)

    def overwrite(self, variables: Mapping[str, keras.Variable]) -> None:
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
