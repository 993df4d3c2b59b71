"""A picture classifier of which a rank holds shards of the weights, or parts of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dtj_trainer.torch import gradient_norm
from dtj_trainer.torch.fully_sharded import shard
from dtj_trainer.torch.model import TorchModel
from dtj_trainer.torch.models.blocks import blocks_of
from dtj_trainer.torch.step_times import NoClock
from dtj_trainer.torch.tensor_parallel import share_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

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
        """See Model. The ranks have different parts, which the saver compares."""
        del weights_alone
        return {}

    def _new_clock(self) -> NoClock:
        return NoClock()
