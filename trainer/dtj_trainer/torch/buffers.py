"""Makes equal on all ranks the buffers that forward passes change, such as BatchNorm's statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dtj_trainer.torch.ranks import exchange_as_one

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from dtj_trainer.torch.ranks import TensorRanks

_OF_PICTURES = ("mean", "deviation")
"""Buffers of a PictureClassifier that no pass changes."""
_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PIECE = 1 << 22
"""The most numbers of one sum: PyTorch first copies the numbers to int64."""


def statistics(network: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of BatchNorm's mean and variance, by name."""
    return {name: buffer for name, buffer in _floating(network).items() if "running_" in name}


def make_same(network: nn.Module, ranks: TensorRanks) -> None:
    """Average the floating buffers over the ranks, and take the others from rank 0.

    A number that is equal on all ranks keeps its bits. BatchNorm's statistics always differ, and take one exchange.
    """
    averaged = statistics(network)
    if averaged:
        exchange_as_one(list(averaged.values()), lambda joined: ranks.average(joined, "statistics"))
    floating = [buffer for name, buffer in _floating(network).items() if name not in averaged]
    if floating:
        exchange_as_one(floating, lambda joined: _average_where_different(joined, ranks))
    for complex_ones in (True, False):
        others = [
            each
            for _, each in _changing(network)
            if not each.is_floating_point() and each.is_complex() is complex_ones
        ]
        if others:
            exchange_as_one(others, lambda joined: ranks.first(joined, "counters"))


def _average_where_different(joined: Tensor, ranks: TensorRanks) -> Tensor:
    """Average over the ranks, and keep numbers that are equal on all ranks: an average might change them by
    rounding.
    """
    first = ranks.first(joined, "first buffers")
    offset = ranks.average(torch.where(joined == first, 0, joined - first), "buffers")
    return torch.where(offset == 0, first, first + offset)


def _floating(network: nn.Module) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in _changing(network) if buffer.is_floating_point()}


def _changing(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, buffer in sorted(network.named_buffers()):
        if name not in _OF_PICTURES:
            yield name, buffer


def fingerprints(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return shape, type and the sum of the bits of each tensor: enough to tell two that have diverged.

    Unlike a SHA-256, the sum is fast on GPUs, and does not depend on the order in which a device adds up.
    """
    named = {name: value.detach() for name, value in tensors.items() if isinstance(value, Tensor)}
    sums = {name: _bits(value) for name, value in named.items()}
    together: list[int] = torch.stack(list(sums.values())).tolist() if sums else []
    return {
        name: f"{value.dtype} {tuple(value.shape)} {bits}"
        for (name, value), bits in zip(named.items(), together, strict=True)
    }


def _bits(value: Tensor) -> Tensor:
    if value.is_complex():
        value = torch.view_as_real(value)
    flat = value.contiguous().view(-1).view(_AS_INTEGERS[value.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=value.device)
    for piece in torch.split(flat, _PIECE):
        total += piece.sum(dtype=torch.int64)
    return total.cpu()
