"""Selects ranks, model and saver of a training by `--fsdp`, `--tensor-parallel` and `--pipeline-stages`.

PyTorch's modules for divided networks take a second to load, which only a divided network spends.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dtj_trainer.torch.c10d_ranks import joined_ranks
from dtj_trainer.torch.model import TorchModel, TorchSaver

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.torch.ranks import TensorRanks
    from dtj_trainer.train.options import Options
    from dtj_trainer.train.protocols import Saver


def ranks_of(options: Options, device: torch.device) -> AbstractContextManager[TensorRanks]:
    """Join the ranks; see `joined_ranks`. Ends the process if their number does not fit the division."""
    if not options.divided:
        return joined_ranks(device)
    from dtj_trainer.torch.mesh_ranks import MeshRanks

    return joined_ranks(device, partial(MeshRanks, options, device))


def model_of(options: Options, data: PictureSet, device: torch.device, ranks: TensorRanks) -> TorchModel:
    """Make the model, or this rank's part of it. `ranks` are those of `ranks_of`."""
    if not options.divided:
        return TorchModel(options, data, device, ranks)
    from dtj_trainer.torch.divided_model import DividedModel
    from dtj_trainer.torch.mesh_ranks import MeshRanks
    from dtj_trainer.torch.pipeline_model import PipelineModel

    assert isinstance(ranks, MeshRanks)
    kind = PipelineModel if options.pipeline_stages > 1 else DividedModel
    return kind(options, data, device, ranks)


def saver_of(options: Options, data: PictureSet, model: TorchModel, ranks: TensorRanks) -> Saver:
    """Make the saver of a model of `model_of`."""
    if not options.divided:
        return TorchSaver(options, data, model, ranks)
    from dtj_trainer.torch.divided_model import DividedModel
    from dtj_trainer.torch.mesh_ranks import MeshRanks
    from dtj_trainer.torch.sharded_saver import ShardedSaver

    assert isinstance(ranks, MeshRanks)
    assert isinstance(model, DividedModel)
    return ShardedSaver(options, data, model, ranks)
