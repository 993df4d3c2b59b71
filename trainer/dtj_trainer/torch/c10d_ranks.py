"""The exchange between the ranks of a job with `torch.distributed`, which PyTorch's sources call c10d."""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

# Import this module before init_process_group: its functions have the process group of their import as a default
# argument, and DistributedDataParallel imports the module too. A group that the module holds lives until Python
# exits. A thread of gloo that waits for Python's lock at the exit aborts the process.
import torch.distributed.nn.functional
from torch.nn.parallel import DistributedDataParallel

from dtj_trainer.torch.ranks import GradientAveraging, TensorRanks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn


@contextmanager
def joined_ranks(
    device: torch.device, of_group: Callable[[], C10dRanks] | None = None
) -> Iterator[TensorRanks]:
    """Join the ranks that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe; without RANK, be a single process.

    device: what this rank computes on. NCCL moves its tensors if the device is a GPU; gloo moves all others.
    of_group: makes the ranks of the process group, in place of C10dRanks. A single process has a group then, too.
    """
    alone: dict[str, Any] = {}
    if "RANK" not in os.environ:
        if of_group is None:
            yield TensorRanks()
            return
        store = dist.HashStore()  # type: ignore[attr-defined]  # documented, but not in __all__
        alone = {"store": store, "rank": 0, "world_size": 1}
    if device.type == "cuda":
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device, **alone)
    else:
        dist.init_process_group("gloo", **alone)
    ranks = (of_group or C10dRanks)()
    try:
        yield ranks
    except SystemExit:
        ranks.leave()
        raise
    # Do not leave after another exception: a rank that fails must not wait for NCCL's operations under way.
    ranks.leave()


class C10dRanks(TensorRanks):
    """See TensorRanks. The ranks of the default process group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._averagings: list[_DistributedDataParallel] = []

    def leave(self) -> None:
        """Leave the process group. The networks of `averaging` can't make passes any more."""
        # The last owner of a group joins gloo's threads, which may wait for Python's global lock to release a tensor.
        # DistributedDataParallel, were it the last owner, would hold the lock and wait for ever.
        for averaging in self._averagings:
            del averaging.network
        dist.destroy_process_group()

    def total(self, values: Sequence[float], name: str) -> list[float]:
        """See Ranks."""
        del name
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor)
        summed: list[float] = tensor.tolist()
        return summed

    def broadcast(self, value: Any) -> Any:
        """See Ranks."""
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def gather(self, value: Any, name: str) -> list[Any]:
        """See Ranks."""
        del name
        held: list[Any] = [None] * self.size
        dist.all_gather_object(held, value)
        return held

    def averaging(
        self, network: nn.Module, optimizer: Any, passes: int, *, every_weight: bool = True
    ) -> GradientAveraging:
        """See TensorRanks."""
        del passes
        self._averagings.append(_DistributedDataParallel(network, optimizer, every_weight=every_weight))
        return self._averagings[-1]

    def average(self, tensor: Tensor, name: str) -> Tensor:
        """See TensorRanks."""
        del name
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed / self.size

    def first(self, tensor: Tensor, name: str) -> Tensor:
        """See TensorRanks."""
        del name
        sent = tensor.clone()
        dist.broadcast(sent, src=0)
        return sent

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """See TensorRanks."""
        for tensor in tensors.values():
            sent = tensor.detach().contiguous()
            dist.broadcast(sent, src=0)
            if sent.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(sent)


# PyTorch 2.13 warns of `broadcast_buffers`, and has `forward_sync_buffers` in its place. PyTorch 2.11 has only the
# old name.
_WITHOUT_BROADCASTS: dict[str, Any] = next(
    {name: False}
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in signature(DistributedDataParallel).parameters
)


class _DistributedDataParallel(GradientAveraging):
    """See GradientAveraging."""

    network: DistributedDataParallel

    def __init__(self, network: nn.Module, optimizer: Any, *, every_weight: bool) -> None:
        # Silence a warning of DDP: the strides of a weight for one input channel can be written in two ways, which
        # costs nothing.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        # The training averages BatchNorm's statistics before each test and checkpoint. Broadcasts of rank 0's
        # statistics before each pass would discard those of the others.
        # With find_unused_parameters, DDP searches each pass for weights that get no gradient. Otherwise DDP would
        # wait for these gradients for ever.
        averaged = DistributedDataParallel(
            network,
            **_WITHOUT_BROADCASTS,
            gradient_as_bucket_view=True,
            find_unused_parameters=not every_weight,
        )
        super().__init__(averaged, optimizer)

    def accumulating(self) -> AbstractContextManager[object]:
        """See GradientAveraging."""
        return self.network.no_sync()
