"""Train a picture classifier by Horovod, on one rank or many, on CPUs or GPUs, without change.

Reads pictures with labels (docs/data.md) from a folder or from S3, trains, tests over all ranks at the end
of each epoch, and writes checkpoints, TensorBoard scalars, metrics.jsonl and the final model into the workspace,
which dtj-launch uploads. A retry resumes from the newest checkpoint.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from contextlib import closing

import horovod.torch as hvd
import torch

from dtj_trainer.data.errors import exit_on_data_error
from dtj_trainer.programs import freeze_imports
from dtj_trainer.torch.gpus import device_of
from dtj_trainer.torch.horovod_ranks import TorchRanks
from dtj_trainer.torch.model import TorchModel, TorchSaver
from dtj_trainer.torch.models import MODELS
from dtj_trainer.train.accelerator import need_nccl_of_horovod
from dtj_trainer.train.options import parse
from dtj_trainer.train.picture_training import train
from dtj_trainer.train.threads import threads_per_rank

log = logging.getLogger("dtj_trainer.programs.horovod_image_classification")


def main(arguments: list[str] | None = None) -> None:
    """Run the program. Exits with 143 after SIGTERM, 65 when the data can't be used, 69 without a requested GPU."""
    assert __doc__ is not None
    freeze_imports()
    name = "dtj_trainer.programs.horovod_image_classification"
    options = parse(arguments, name, __doc__, MODELS, grad_accumulation=True, pytorch=True)
    if options.profile_steps:
        os.environ.setdefault("HOROVOD_TIMELINE", "DYNAMIC")  # lets a timeline start after hvd.init
    hvd.init()
    # dtj-launch adds the rank to each line.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)
    device = device_of(hvd.local_rank(), _need_nccl)
    threads = threads_per_rank(hvd.local_size())
    if threads and device.type == "cpu":
        torch.set_num_threads(threads)
    log.info(
        "one of %d ranks, %d of them on %s, on %s with %d threads; PyTorch %s, Horovod over %s",
        hvd.size(),
        hvd.local_size(),
        socket.gethostname(),
        device.type,
        torch.get_num_threads(),
        torch.__version__,
        _connected_by(device),
    )
    with exit_on_data_error():
        data = options.load()
    ranks = TorchRanks()
    with closing(TorchModel(options, data, device, ranks)) as model:
        train(options, data, model, ranks, TorchSaver(options, data, model, ranks))
    hvd.shutdown()


def _need_nccl(gpus: int) -> None:
    need_nccl_of_horovod(gpus, hvd.local_size(), built=bool(hvd.nccl_built()))


def _connected_by(device: torch.device) -> str:
    """Name the libraries that exchange the gradients and that connected the ranks."""
    by = "MPI" if hvd.mpi_enabled() else "gloo"
    return by if device.type == "cpu" else f"NCCL and {by}"


if __name__ == "__main__":
    main()
