"""The exchange of tensors between the ranks of a PyTorch training: what a way to connect the ranks implements.

`c10d_ranks`, `horovod_ranks` and `mesh_ranks` implement it, and the training's loop and model call it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from dtj_trainer.train.protocols import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch import Tensor, nn


class GradientAveraging:
    """A network and its optimizer, whose steps use the mean of all ranks' gradients.

    This base class is for a single process.
    """

    def __init__(self, network: nn.Module, optimizer: Any) -> None:
        self.network, self.optimizer = network, optimizer

    def accumulating(self) -> AbstractContextManager[object]:
        """Return the context of a forward and a backward pass after which another pass of the same step follows."""
        return nullcontext()

    def averaged(self) -> AbstractContextManager[object]:
        """Return the context of the optimizer's step. In the context, all ranks have the same gradients."""
        return nullcontext()


class TensorRanks(Ranks):
    """The ranks of a PyTorch training. This base class is for a single process."""

    def averaging(
        self, network: nn.Module, optimizer: Any, passes: int, *, every_weight: bool = True
    ) -> GradientAveraging:
        """Average the gradients of `network` over the ranks. A step has at most `passes` backward passes.

        `every_weight`: whether each pass is known to use every weight.
        """
        del passes, every_weight
        return GradientAveraging(network, optimizer)

    def average(self, tensor: Tensor, name: str) -> Tensor:
        """Average a tensor over all ranks."""
        del name  # The name is for subclasses, which may match the calls of ranks by name.
        return tensor

    def first(self, tensor: Tensor, name: str) -> Tensor:
        """Return rank 0's tensor, of equal type and shape on all ranks."""
        del name
        return tensor

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite tensors, which have equal names and shapes on all ranks, by rank 0's."""

    def start_timeline(self, path: Path) -> None:
        """Begin a timeline of the exchanges in the file at `path` of rank 0, if the library can write one."""

    def stop_timeline(self) -> None:
        """Complete the file of `start_timeline`."""


# `exchange_as_one` joins many tensors to one exchange between ranks, which has the latency of a single exchange.


def exchange_as_one(tensors: Sequence[Tensor], exchange: Callable[[Tensor], Tensor]) -> None:
    """Concatenate tensors of one type to a vector, and overwrite them by what `exchange` returns for the vector."""
    exchanged = exchange(torch.cat([each.reshape(-1) for each in tensors]))
    parts = torch.split(exchanged, [each.numel() for each in tensors])
    for each, part in zip(tensors, parts, strict=True):
        each.copy_(part.view(each.shape))
