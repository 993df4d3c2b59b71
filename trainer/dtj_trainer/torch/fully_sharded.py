"""Weights, gradients and optimizer in shards: each rank keeps one shard, and gathers a block when a pass needs it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.fsdp import fully_shard

from dtj_trainer.torch.models.blocks import keep_inputs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.device_mesh import DeviceMesh

    from dtj_trainer.torch.models.blocks import Block

BLOCK_PARAMETERS = 50_000
"""Smaller blocks are gathered together with the network: an exchange for each would cost more than memory saves."""


def shard(network: nn.Module, blocks: Iterable[Block], mesh: DeviceMesh) -> None:
    """Shard `network` in place over the ranks of `mesh`, and move it to the mesh's device, block by block."""
    keep_inputs(network)
    warnings.filterwarnings("ignore", r"FSDP2-wrapped module \(\w+\) returned a view tensor")
    for block in blocks:
        if isinstance(block, nn.Module) and block is not network and _parameters(block) >= BLOCK_PARAMETERS:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(network, mesh=mesh, reshard_after_forward=True)


def _parameters(block: nn.Module) -> int:
    return sum(each.numel() for each in block.parameters())
