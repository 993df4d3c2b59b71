"""The norm of a gradient of which each rank has a part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from dtj_trainer.torch.mesh_ranks import own_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dtj_trainer.torch.mesh_ranks import MeshRanks


def clip(weights: Sequence[Tensor], largest: float, ranks: MeshRanks, *, staged: bool) -> None:
    """Reduce the norm of the gradients of all ranks' weights to `largest`, as `torch.nn.utils.clip_grad_norm_` does.

    staged: whether the parts of the network are stages, whose weights no other part has.
    """
    gradients = [each.grad for each in weights if each.grad is not None]
    square = torch.zeros(1, dtype=torch.float64)
    for each in gradients:
        # A gradient that several ranks have counts once.
        divided = dimensions_of(each) | ({"model"} if staged else set())
        copies = (1 if "data" in divided else ranks.data_size) * (
            1 if "model" in divided else ranks.model.size()
        )
        square += own_part(each).double().square().sum().cpu() / copies
    dist.all_reduce(square)
    factor = min(largest / (square.sqrt().item() + 1e-6), 1.0)
    for each in gradients:
        own_part(each).mul_(factor)


def dimensions_of(tensor: Tensor) -> set[str]:
    """Return the dimensions of the mesh over which a tensor is divided."""
    if not isinstance(tensor, DTensor):
        return set()
    names = tensor.device_mesh.mesh_dim_names or ()
    return {name for name, place in zip(names, tensor.placements, strict=True) if not place.is_replicate()}
