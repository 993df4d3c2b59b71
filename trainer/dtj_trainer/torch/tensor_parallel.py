"""Dense layers that several ranks share: each has some columns of the first weight and some rows of the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dtj_trainer.torch.models.blocks import keep_inputs, tensor_layers_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_SPLIT = {"column": ("out_features", ColwiseParallel), "row": ("in_features", RowwiseParallel)}


def share_layers(network: nn.Module, name: str, mesh: DeviceMesh) -> None:
    """Let the ranks of `mesh` share the layers that `network` names in `tensor_layers`.

    The ranks compute the other layers all alike. `name` is that of the network, for messages. Ends the process if no
    layer can be shared, or not among so many ranks.
    """
    option, size = f"--tensor-parallel={mesh.size()}", mesh.size()
    layers = tensor_layers_of(network)
    if not layers:
        raise SystemExit(
            f"{option}: {name} has no layer to share for pictures of this size: use --fsdp or --pipeline-stages, or "
            "another --model (docs/model-parallel.md)"
        )
    keep_inputs(network)
    for path, kind in layers.items():
        layer: Any = network.get_submodule(path)
        if kind == "dropout":
            network.set_submodule(path, SharedDropout(layer.p, mesh))
            continue
        width, style = _SPLIT[kind]
        if getattr(layer, width) % size:
            raise SystemExit(
                f"{option}: {size} does not divide the {getattr(layer, width)} {width} of {name}'s layer {path}: "
                "give a divisor"
            )
        parallelize_module(layer, mesh, style())


class SharedDropout(nn.Module):
    """Dropout of this rank's part of the last dimension, by the random numbers of the whole.

    All ranks draw the same numbers. With `nn.Dropout`, the ranks would drop the same places of their parts.
    """

    def __init__(self, probability: float, mesh: DeviceMesh) -> None:
        super().__init__()
        self._keep, self._mesh = 1 - probability, mesh

    def forward(self, values: Tensor) -> Tensor:
        """Drop values during training."""
        if not self.training:
            return values
        size, rank = self._mesh.size(), self._mesh.get_local_rank()
        width = values.shape[-1]
        kept = torch.empty((*values.shape[:-1], width * size), dtype=values.dtype, device=values.device)
        kept.bernoulli_(self._keep).div_(self._keep)
        return values * kept[..., rank * width : (rank + 1) * width]
