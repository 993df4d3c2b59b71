"""Train a picture classifier by PyTorch's DistributedDataParallel, on one rank or many, on CPUs or GPUs.

Options divide the network among the ranks in place of that: docs/model-parallel.md.

Reads pictures with labels (docs/data.md) from a folder or from S3, trains, tests over all ranks at the end
of each epoch, and writes checkpoints, TensorBoard scalars, metrics.jsonl and the final model into the workspace,
which dtj-launch uploads. A retry resumes from the newest checkpoint.

The variables of torchrun say which rank the process is: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR
and MASTER_PORT. Without them it is a single process.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from dtj_trainer.data.errors import exit_on_data_error
from dtj_trainer.programs import freeze_imports
from dtj_trainer.torch.c10d_ranks import joined_ranks
from dtj_trainer.torch.gpus import device_of
from dtj_trainer.torch.model import TorchModel, TorchSaver
from dtj_trainer.torch.models import MODELS
from dtj_trainer.train.accelerator import need_nccl
from dtj_trainer.train.options import parse
from dtj_trainer.train.picture_training import train
from dtj_trainer.train.threads import threads_per_rank

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.torch.ranks import TensorRanks
    from dtj_trainer.train.options import TrainingOptions
    from dtj_trainer.train.protocols import Saver


# These functions select ranks, model and saver of a training by `--fsdp`, `--tensor-parallel` and
# `--pipeline-stages`.
#
# PyTorch's modules for divided networks take a second to load, which only a divided network spends.


def ranks_of(options: TrainingOptions, device: torch.device) -> AbstractContextManager[TensorRanks]:
    """Join the ranks; see `joined_ranks`. Ends the process if their number does not fit the division."""
    if not options.divided:
        return joined_ranks(device)
    from dtj_trainer.torch.mesh_ranks import MeshRanks

    return joined_ranks(device, partial(MeshRanks, options, device))


def model_of(
    options: TrainingOptions, data: PictureSet, device: torch.device, ranks: TensorRanks
) -> TorchModel:
    """Make the model, or the part of a divided model that this rank has. `ranks`: what `ranks_of` returned."""
    if not options.divided:
        return TorchModel(options, data, device, ranks)
    from dtj_trainer.torch.divided_model import DividedModel
    from dtj_trainer.torch.mesh_ranks import MeshRanks
    from dtj_trainer.torch.pipeline_model import PipelineModel

    assert isinstance(ranks, MeshRanks)
    kind = PipelineModel if options.pipeline_stages > 1 else DividedModel
    return kind(options, data, device, ranks)


def saver_of(options: TrainingOptions, data: PictureSet, model: TorchModel, ranks: TensorRanks) -> Saver:
    """Make the saver of a model of `model_of`."""
    if not options.divided:
        return TorchSaver(options, data, model, ranks)
    from dtj_trainer.torch.divided_model import DividedModel
    from dtj_trainer.torch.mesh_ranks import MeshRanks
    from dtj_trainer.torch.sharded_saver import ShardedSaver

    assert isinstance(ranks, MeshRanks)
    assert isinstance(model, DividedModel)
    return ShardedSaver(options, data, model, ranks)


log = logging.getLogger("dtj_trainer.programs.torch_image_classification")


@record  # Writes an exception into the error file of this rank, whose failure then says more than its exit code.
def main(arguments: list[str] | None = None) -> None:
    """Run the program. Exits with 143 after SIGTERM, 65 when the data can't be used, 69 without a requested GPU."""
    assert __doc__ is not None
    freeze_imports()
    name = "dtj_trainer.programs.torch_image_classification"
    of_pytorch = {"grad_accumulation": True, "sync_batchnorm": True, "pytorch": True, "division": True}
    options = parse(arguments, name, __doc__, MODELS, **of_pytorch)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)
    device = device_of(int(os.environ.get("LOCAL_RANK", "0")), _need_nccl)
    threads = threads_per_rank(_ranks_here())
    if threads and device.type == "cpu":
        torch.set_num_threads(threads)
    with ranks_of(options, device) as ranks:
        log.info(
            "rank %d of %d, one of %d on %s, on %s with %d threads; PyTorch %s",
            *(ranks.rank, ranks.size, _ranks_here(), socket.gethostname()),
            *(device.type, torch.get_num_threads(), torch.__version__),
        )
        with exit_on_data_error():
            data = options.load()
        with closing(model_of(options, data, device, ranks)) as model:
            train(options, data, model, ranks, saver_of(options, data, model, ranks))


def _ranks_here() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _need_nccl(gpus: int) -> None:
    without = None if dist.is_nccl_available() else "PyTorch in this image is built without NCCL"
    need_nccl(gpus, _ranks_here(), without=without, field="torch.procsPerWorker")


if __name__ == "__main__":
    main()
