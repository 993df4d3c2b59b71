"""A picture classifier of which a rank holds shards of the weights, or parts of layers."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dtj_trainer.artifacts import checkpoints
from dtj_trainer.data.sharding import Share
from dtj_trainer.torch import buffers, trial
from dtj_trainer.torch.mesh_ranks import own_part
from dtj_trainer.torch.model import TorchModel
from dtj_trainer.torch.models.blocks import blocks_of, keep_inputs, tensor_layers_of
from dtj_trainer.torch.step_times import NoClock
from dtj_trainer.train.own_model import is_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.torch.mesh_ranks import MeshRanks
    from dtj_trainer.torch.models import PictureClassifier
    from dtj_trainer.torch.models.blocks import Block
    from dtj_trainer.train.options import TrainingOptions


# share_layers divides pairs of dense layers: each rank has columns of the first weight and rows of the second one.

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


# `clip` reduces the norm of a gradient whose parts are on several ranks.


def clip(weights: Sequence[Tensor], largest: float, ranks: MeshRanks, *, staged: bool) -> None:
    """Reduce the norm of the gradients of all ranks' weights to `largest`, as `torch.nn.utils.clip_grad_norm_` does.

    staged: whether the parts of the network are stages, whose weights no other part has.
    """
    gradients = [each.grad for each in weights if each.grad is not None]
    square = torch.zeros(1, dtype=torch.float64)
    for each in gradients:
        # Divide by the number of ranks that have the same part of the gradient, so that the sum counts the part once.
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


# `shard` leaves each rank one shard of weights, gradients and optimizer. A pass gathers the weights block by block.

BLOCK_PARAMETERS = 50_000
"""Blocks with fewer parameters are gathered together with the network: an exchange for each would cost more than the
memory saves."""


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


class DividedModel(TorchModel):
    """A TorchModel whose weights are divided among the ranks by `--fsdp`, by `--tensor-parallel`, or by both."""

    _ranks: MeshRanks
    _staged = False
    # FSDP gathers weights in a test. Weights that are gathered in inference mode could not be trained afterwards.
    _without_gradients = torch.no_grad
    _may_fuse = False

    def __init__(
        self, options: TrainingOptions, data: PictureSet, device: torch.device, ranks: MeshRanks
    ) -> None:
        super().__init__(options, data, device, ranks)
        if self.precision.dtype is torch.float16:
            raise SystemExit(
                "mixed precision of a divided network needs bfloat16, which this GPU lacks: give --no-amp"
            )
        if options.tensor_parallel > 1:
            # Turn off `foreach`, which updates many parameters at once: PyTorch would refuse to mix parameters that
            # are divided in different ways.
            for group in self.optimizer.param_groups:
                group["foreach"] = False
        if is_own(options.model) and not any(ranks.gather(checkpoints.newest() is not None, "checkpoints")):
            self._try_step(data, options)

    def _try_step(self, data: PictureSet, options: TrainingOptions) -> None:
        """Make the smallest step of the training without its update: see `trial`."""
        ranks = self._ranks
        least = min(trial.smallest_passes(len(data.train), options, ranks.data_size))
        # If a step has fewer examples than there are shares, some shares have none: in this trial, only the first has
        # one.
        count = least or int(ranks.data_rank == 0)
        share = Share(np.arange(max(count, 1)), count, least * ranks.data_size or 1, 0)
        pixels = np.random.default_rng(1).integers(0, 256, (max(count, 1), *data.shape), np.uint8)
        batch = self.prepare(pixels, np.zeros(max(count, 1), np.int64))
        trial.try_step(self.network, lambda: self._make_passes(batch, share), count, self._device)
        self.optimizer.zero_grad()
        self._sums.zero_()

    @property
    def tests_together(self) -> bool:
        """See PictureModel."""
        return True

    def _placed(
        self, network: PictureClassifier, options: TrainingOptions, shape: tuple[int, int, int]
    ) -> nn.Module:
        # Each rank divides a network that it built itself. Send the weights of rank 0 first: a factory of the user
        # may draw other first weights in each rank.
        self._ranks.broadcast_tensors(network.state_dict())
        if options.tensor_parallel > 1:
            share_layers(network.network, options.model, self._ranks.model)
        if options.fsdp:
            shard(network, blocks_of(network.network), self._ranks.data)
        else:
            super()._placed(network, options, shape)
        return network

    def _clip(self, weights: Sequence[Tensor]) -> None:
        assert self._clip_norm is not None
        clip(weights, self._clip_norm, self._ranks, staged=self._staged)

    def fingerprints(self, *, weights_alone: bool) -> dict[str, str]:
        """See Model. Leaves out FSDP's shards, of which no other rank has a copy."""
        named = dict(self.network.named_parameters()) if weights_alone else self.network.state_dict()
        tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
        return buffers.fingerprints(
            {name: own_part(value) for name, value in tensors.items() if "data" not in dimensions_of(value)}
        )

    def _new_clock(self) -> NoClock:
        return NoClock()
