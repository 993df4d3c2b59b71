"""What the ranks of a Horovod job with PyTorch do together, besides averaging gradients."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import horovod.torch as hvd
import torch

from dtj_trainer.programs.learner import same_on_all
from dtj_trainer.programs.pieces import PIECE_BYTES, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn


def total(values: Sequence[float], name: str) -> list[float]:
    """The sum of each value over all ranks, bit for bit the same on each of them."""
    summed = hvd.allreduce(torch.tensor(values, dtype=torch.float64), op=hvd.Sum, name=name)
    result: list[float] = summed.tolist()
    return result


def broadcast(value: Any) -> Any:
    """What rank 0 gives, on every rank. For small objects: `value` is pickled, and copied several times."""
    return hvd.broadcast_object(value, root_rank=0, name="object")


def share_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give every rank the weights and the optimizer's state of rank 0, tensor by tensor, in place.

    Horovod's own `broadcast_optimizer_state` makes a step with zero gradients where there is no state yet, which
    moves the weights under weight decay and counts as a step for Adam. Its `broadcast_object` can't send 2 GiB,
    and holds several copies of what it sends.
    """
    empty = broadcast(without_values(optimizer.state_dict()) if hvd.rank() == 0 else None)
    if hvd.rank() != 0:
        optimizer.load_state_dict(with_values(empty))
    tensors = {f"model.{name}": each for name, each in model.state_dict().items()}
    tensors |= {f"optimizer.{name}": each for name, each in tensors_in(optimizer.state_dict()["state"])}
    broadcast_tensors(tensors)


def broadcast_tensors(tensors: Mapping[str, torch.Tensor]) -> None:
    """Overwrite tensors, of the same names and shapes on all ranks, by those of rank 0."""
    under_way: list[int] = []
    size = 0
    for name, tensor in tensors.items():
        flat = tensor.detach().contiguous().view(-1)
        for piece in pieces(flat.numel(), flat.element_size()):
            part = flat[piece]
            under_way.append(hvd.broadcast_async_(part, root_rank=0, name=f"{name}.{piece.start}"))
            size += part.numel() * part.element_size()
            if size >= PIECE_BYTES:  # On GPUs each of them may have a copy in the host's memory.
                _wait(under_way)
                size = 0
        if flat.data_ptr() != tensor.data_ptr():
            _wait(under_way)
            tensor.detach().copy_(flat.view(tensor.shape))
    _wait(under_way)


def _wait(handles: list[int]) -> None:
    while handles:
        hvd.synchronize(handles.pop(0))


class Empty(NamedTuple):
    """In place of a tensor: what it takes to make one like it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


def without_values(state: Any) -> Any:
    """A state dict of dicts and lists with an Empty in place of each tensor."""
    if isinstance(state, torch.Tensor):
        return Empty(tuple(state.shape), state.dtype, state.device.type)
    if isinstance(state, dict):
        return {key: without_values(value) for key, value in state.items()}
    return [without_values(value) for value in state] if isinstance(state, list) else state


def with_values(state: Any) -> Any:
    """The opposite of `without_values`; the tensors' values are any."""
    if isinstance(state, Empty):
        return torch.empty(state.shape, dtype=state.dtype, device=state.device)
    if isinstance(state, dict):
        return {key: with_values(value) for key, value in state.items()}
    return [with_values(value) for value in state] if isinstance(state, list) else state


def tensors_in(state: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a state dict with names, in an order that is the same on all ranks."""
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(value, dict):
            yield from tensors_in(value, f"{prefix}{key}.")


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    """What is not trained but gathered from each rank's own batches, by name: BatchNorm's mean and variance."""
    return {
        name: buffer
        for name, buffer in sorted(model.named_buffers())
        if buffer.is_floating_point() and "running_" in name
    }


def average_statistics(model: nn.Module) -> None:
    """Make the `statistics` the same on all ranks: their average, by a single exchange."""
    buffers = list(statistics(model).values())
    if not buffers:
        return
    joined = torch.cat([buffer.reshape(-1) for buffer in buffers])
    average = hvd.allreduce(joined, op=hvd.Average, name="statistics")
    for buffer, values in zip(buffers, average.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(values.view(buffer.shape))


def weights_digest(model: nn.Module) -> str:
    """The sha256 of all weights and statistics, byte for byte, in the order of their names."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def check_identical(model: nn.Module) -> str:
    """The digest of this rank's weights; raises RanksDiverged, on every rank, when they are not the same on all."""
    mine = weights_digest(model)
    digests: list[str] = hvd.allgather_object(mine, name="weights")
    same_on_all(digests)
    return mine
