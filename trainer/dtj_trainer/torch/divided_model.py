"""A picture classifier of which a rank holds shards of the weights, or parts of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dtj_trainer.artifacts import checkpoints
from dtj_trainer.data.sharding import Share
from dtj_trainer.torch import buffers, gradient_norm, trial
from dtj_trainer.torch.fully_sharded import shard
from dtj_trainer.torch.mesh_ranks import own_part
from dtj_trainer.torch.model import TorchModel
from dtj_trainer.torch.models.blocks import blocks_of
from dtj_trainer.torch.step_times import NoClock
from dtj_trainer.torch.tensor_parallel import share_layers
from dtj_trainer.train.own_model import is_own

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.torch.mesh_ranks import MeshRanks
    from dtj_trainer.torch.models import PictureClassifier
    from dtj_trainer.train.options import Options


class DividedModel(TorchModel):
    """See TorchModel. With `--fsdp`, with `--tensor-parallel`, or with both."""

    _ranks: MeshRanks
    _staged = False
    # FSDP gathers weights in a test, which inference mode would spoil for the training.
    _without_gradients = torch.no_grad
    _may_fuse = False

    def __init__(self, options: Options, data: PictureSet, device: torch.device, ranks: MeshRanks) -> None:
        super().__init__(options, data, device, ranks)
        if self.precision.dtype is torch.float16:
            raise SystemExit("a divided network needs bfloat16, which this GPU lacks: give --no-amp")
        if options.tensor_parallel > 1:
            # A fused update can't have parameters of several kinds: shared, in shards, and whole ones.
            for group in self.optimizer.param_groups:
                group["foreach"] = False
        if is_own(options.model) and not any(ranks.gather(checkpoints.newest() is not None, "checkpoints")):
            self._try_step(data, options)

    def _try_step(self, data: PictureSet, options: Options) -> None:
        """Make the smallest step of the training without its update: see `trial`."""
        ranks = self._ranks
        least = min(trial.smallest_passes(len(data.train), options, ranks.data_size))
        # In a step of fewer examples than shares, some shares have one: here the first alone.
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

    def _placed(self, network: PictureClassifier, options: Options, shape: tuple[int, int, int]) -> nn.Module:
        # Each rank divides what it has built itself. A factory of the user may have drawn other first weights.
        self._ranks.overwrite(network.state_dict())
        if options.tensor_parallel > 1:
            share_layers(network.network, options.model, self._ranks.model)
        if options.fsdp:
            shard(network, blocks_of(network.network), self._ranks.data)
        else:
            super()._placed(network, options, shape)
        return network

    def _clip(self, weights: Sequence[Tensor]) -> None:
        assert self._clip_norm is not None
        gradient_norm.clip(weights, self._clip_norm, self._ranks, staged=self._staged)

    def fingerprints(self, *, weights_alone: bool) -> dict[str, str]:
        """See Model. Those of the tensors that other ranks have too: no shards of FSDP, which each has alone."""
        named = dict(self.network.named_parameters()) if weights_alone else self.network.state_dict()
        tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
        return buffers.fingerprints(
            {
                name: own_part(value)
                for name, value in tensors.items()
                if "data" not in gradient_norm.dimensions_of(value)
            }
        )

    def _new_clock(self) -> NoClock:
        return NoClock()
