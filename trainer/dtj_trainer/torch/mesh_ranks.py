"""The ranks of a divided network: a mesh of the shares of the examples and the parts of the network."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dtj_trainer.torch.c10d_ranks import C10dRanks
from dtj_trainer.torch.ranks import GradientAveraging, exchange_as_one
from dtj_trainer.train.pieces import groups
from dtj_trainer.train.protocols import NAMED, RanksDiverged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import Tensor, nn

    from dtj_trainer.train.options import DivisionOptions


class MeshRanks(C10dRanks):
    """See C10dRanks. Ranks 0 to n - 1 have the n parts of the first copy of the network, and so on.

    Thus the ranks that exchange most, those of one copy, are on one host where possible. Ends the process if the
    number of ranks is no multiple of n.
    """

    def __init__(self, options: DivisionOptions, device: torch.device) -> None:
        super().__init__()
        options.check_ranks(self.size)
        shape = self.size // options.model_ranks, options.model_ranks
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "model"))
        self.data, self.model = mesh["data"], mesh["model"]
        self.model_rank: int = self.model.get_local_rank()

    @property
    def data_rank(self) -> int:
        """See Ranks."""
        return self.data.get_local_rank()

    @property
    def data_size(self) -> int:
        """See Ranks."""
        return self.data.size()

    @property
    def counts(self) -> bool:
        """See Ranks. Only the last stage of a pipeline computes outputs. Ranks that share layers all compute them."""
        return self.model_rank == self.model.size() - 1

    def averaging(
        self, network: nn.Module, optimizer: Any, passes: int, *, every_weight: bool = True
    ) -> GradientAveraging:
        """See TensorRanks. Averages over the ranks that have the same part of the network."""
        del passes, every_weight
        if isinstance(network, FSDPModule):
            return _FullySharded(network, optimizer)
        return _SamePart(network, optimizer, self.data.get_group())

    def average(self, tensor: Tensor, name: str) -> Tensor:
        """See TensorRanks. Averages over the ranks that have the same part of the network."""
        del name
        summed = tensor.clone()
        dist.all_reduce(summed, group=self.data.get_group())
        return summed / self.data_size

    def first(self, tensor: Tensor, name: str) -> Tensor:
        """See TensorRanks. Returns the tensor of the first rank that has the same part of the network."""
        del name
        sent = tensor.clone()
        dist.broadcast(sent, group=self.data.get_group(), group_src=0)
        return sent

    def same_on_all(self, digest: str, of_each: Mapping[str, str] | None = None) -> None:
        """See Ranks. Compares the ranks that have the same part of the network."""
        found = self.gather((self.model_rank, digest), "weights")
        first = {part: rank for rank, (part, _) in reversed([*enumerate(found)])}
        pairs = [(rank, first[part]) for rank, (part, _) in enumerate(found)]
        unlike = [(rank, other) for rank, other in pairs if found[rank][1] != found[other][1]]
        if not unlike:
            return
        rank, other = unlike[0]
        weights = self.gather(dict(of_each or {}), "names")
        names = sorted(dict(weights[rank].items() ^ weights[other].items()))[:NAMED]
        raise RanksDiverged(
            f"rank {rank} and rank {other} have the same part of the network, but different weights: "
            f"{', '.join(names)}; a possible cause is a forward pass that changes a weight"
        )


class _FullySharded(GradientAveraging):
    """See GradientAveraging. Each rank gets its shard of the averaged gradient during the backward pass."""

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """See GradientAveraging."""
        assert isinstance(self.network, FSDPModule)
        self.network.set_requires_gradient_sync(requires_gradient_sync=False)
        try:
            yield
        finally:
            self.network.set_requires_gradient_sync(requires_gradient_sync=True)


class _SamePart(GradientAveraging):
    """See GradientAveraging. Averages after the last backward pass, over `group`."""

    def __init__(self, network: nn.Module, optimizer: Any, group: dist.ProcessGroup) -> None:
        super().__init__(network, optimizer)
        self._group = group

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """See GradientAveraging."""
        gradients = [own_part(each.grad) for each in self.network.parameters() if each.grad is not None]
        if self._group.size() > 1:
            for group in groups([each.nbytes for each in gradients]):
                exchange_as_one(gradients[group], self._average)
        yield

    def _average(self, together: Tensor) -> Tensor:
        dist.all_reduce(together, group=self._group)
        return together.div_(self._group.size())


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
