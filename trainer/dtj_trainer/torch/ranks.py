"""The exchange of tensors between the ranks of a PyTorch training. Imports no framework."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from dtj_trainer.train.protocols import Ranks

if TYPE_CHECKING:
    from collections.abc import Mapping
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
        del name  # Subclasses may match calls by name.
        return tensor

    def first(self, tensor: Tensor, name: str) -> Tensor:
        """Return rank 0's tensor, of equal type and shape on all ranks."""
        del name
        return tensor

    def overwrite(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite tensors, which have equal names and shapes on all ranks, by rank 0's."""

    def start_timeline(self, path: Path) -> None:
        """Begin a timeline of the exchanges in the file at `path` of rank 0, if the library can write one."""

    def stop_timeline(self) -> None:
        """Complete the file of `start_timeline`."""
