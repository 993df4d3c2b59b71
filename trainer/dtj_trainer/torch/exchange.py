"""The exchange of many tensors between ranks as a single one, which saves the latency of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


def exchange_as_one(tensors: Sequence[Tensor], exchange: Callable[[Tensor], Tensor]) -> None:
    """Concatenate tensors of one type to a vector, and overwrite them by what `exchange` returns for the vector."""
    exchanged = exchange(torch.cat([each.reshape(-1) for each in tensors]))
    parts = torch.split(exchanged, [each.numel() for each in tensors])
    for each, part in zip(tensors, parts, strict=True):
        each.copy_(part.view(each.shape))
