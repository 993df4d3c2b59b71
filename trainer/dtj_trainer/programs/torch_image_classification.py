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

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from dtj_trainer.data.errors import exit_on_data_error
from dtj_trainer.programs import freeze_imports
from dtj_trainer.torch.division import model_of, ranks_of, saver_of
from dtj_trainer.torch.gpus import device_of
from dtj_trainer.torch.models import MODELS
from dtj_trainer.train.accelerator import need_nccl
from dtj_trainer.train.options import parse
from dtj_trainer.train.pictures import train
from dtj_trainer.train.threads import threads_per_rank

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
