"""What the ranks of a Horovod job with PyTorch do together, besides averaging gradients."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import horovod.torch as hvd
import torch

from dtj_trainer.programs.learner import same_on_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


def total(values: Sequence[float], name: str) -> list[float]:
    """The sum of each value over all ranks, bit for bit the same on each of them."""
    summed = hvd.allreduce(torch.tensor(values, dtype=torch.float64), op=hvd.Sum, name=name)
    result: list[float] = summed.tolist()
    return result


def broadcast_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Give every rank the weights of rank 0, or what rank 0 has loaded: `saved`, None on the others.

    The optimizer's state travels as an object. Horovod's own `broadcast_optimizer_state` makes a step
    with zero gradients where there is no state yet, which moves the weights under weight decay and
    counts as a step for Adam; and before the first step all ranks have the same, empty state anyway.
    """
    state: dict[str, Any] | None = hvd.broadcast_object(saved, root_rank=0, name="checkpoint")
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return state


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    """What is not trained but gathered from each rank's own batches, by name: BatchNorm's mean and variance."""
    return {
        name: buffer
        for name, buffer in sorted(model.named_buffers())
        if buffer.is_floating_point() and "running_" in name
    }


def average_statistics(model: nn.Module) -> None:
    """Make the `statistics` the same on all ranks: their average."""
    for name, buffer in statistics(model).items():
        buffer.copy_(hvd.allreduce(buffer, op=hvd.Average, name=f"statistics.{name}"))


def weights_digest(model: nn.Module) -> str:
    """The sha256 of all weights and statistics, byte for byte, in the order of their names."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_identical(model: nn.Module) -> str:
    """The digest of this rank's weights; raises RanksDiverged, on every rank, when they are not the same on all."""
    mine = weights_digest(model)
    digests: list[str] = hvd.allgather_object(mine, name="weights")
    same_on_all(digests)
    return mine
