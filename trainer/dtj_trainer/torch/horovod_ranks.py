"""The exchange between the ranks of a PyTorch training by Horovod."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import horovod.torch as hvd
import torch

from dtj_trainer.torch.ranks import GradientAveraging, TensorRanks
from dtj_trainer.train.horovod_ranks import HorovodRanks
from dtj_trainer.train.pieces import PIECE_BYTES, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class TorchRanks(HorovodRanks, TensorRanks):
    """See TensorRanks."""

    def __init__(self) -> None:
        super().__init__(hvd, torch.from_numpy)

    def averaging(
        self, network: torch.nn.Module, optimizer: Any, passes: int, *, every_weight: bool = True
    ) -> GradientAveraging:
        """See TensorRanks. Horovod exchanges zeros for a weight without a gradient."""
        del every_weight
        named = network.named_parameters()
        averaged = self._hvd.DistributedOptimizer(
            optimizer, named_parameters=named, backward_passes_per_step=passes, op=self._hvd.Average
        )
        return _DistributedOptimizer(network, averaged)

    def first(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """See TensorRanks."""
        sent: torch.Tensor = self._hvd.broadcast(tensor, root_rank=0, name=name)
        return sent

    def broadcast_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
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
                # Limit the transfers under way: on GPUs, each may hold a copy in host memory.
                if size >= PIECE_BYTES:
                    self._wait(under_way)
                    size = 0
            if flat.data_ptr() != tensor.data_ptr():
                self._wait(under_way)
                tensor.detach().copy_(flat.view(tensor.shape))
        self._wait(under_way)

    def start_timeline(self, path: Path) -> None:
        """See TensorRanks."""
        self._hvd.start_timeline(str(path))

    def stop_timeline(self) -> None:
        """See TensorRanks."""
        self._hvd.stop_timeline()

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
