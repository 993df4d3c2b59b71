"""Train a picture classifier by Horovod, on one rank or many, on CPUs or GPUs, without change.

Reads a data set in MNIST's layout (four idx files) from a folder or from S3, trains, tests over all ranks at the end
of each epoch, and writes checkpoints, TensorBoard scalars, metrics.jsonl and the final model into the workspace,
which dtj-launch uploads. A retry resumes from the newest checkpoint.
"""

from __future__ import annotations

import logging
import socket
import sys

import horovod.torch as hvd
import torch

from dtj_trainer.data.errors import exit_on_data_error
from dtj_trainer.data.pictures import data_uri, load_pictures
from dtj_trainer.models import MODELS
from dtj_trainer.programs import accelerator
from dtj_trainer.programs.horovod_ranks import TorchRanks
from dtj_trainer.programs.options import parse
from dtj_trainer.programs.picture_training import train
from dtj_trainer.programs.threads import threads_per_rank
from dtj_trainer.programs.torch_model import TorchModel, TorchSaver

log = logging.getLogger("dtj_trainer.programs.horovod_image_classification")


def main(arguments: list[str] | None = None) -> None:
    """Run the program. Exits with 143 after SIGTERM, 65 when the data can't be used, 69 without a requested GPU."""
    assert __doc__ is not None
    options = parse(arguments, "dtj_trainer.programs.horovod_image_classification", __doc__, MODELS)
    hvd.init()
    # dtj-launch adds the rank to each line.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)
    device = _device()
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
        data = load_pictures(data_uri(options.data))
    ranks = TorchRanks()
    model = TorchModel(options, data, device, ranks)
    train(options, data, model, ranks, TorchSaver(options, data, model, ranks))
    hvd.shutdown()


def _device() -> torch.device:
    """Select this rank's GPU on its host, or the CPU if there is no GPU and none was requested."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        accelerator.need_gpus(gpus, _without_gpus())
        return torch.device("cpu")
    accelerator.need_nccl(gpus, hvd.local_size(), built=bool(hvd.nccl_built()))
    device = torch.device("cuda", hvd.local_rank())
    torch.cuda.set_device(device)
    return device


def _without_gpus() -> str:
    """Return why PyTorch finds no GPU."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return f"PyTorch {torch.__version__} can use none: {str(error).splitlines()[0]}"
    return f"PyTorch {torch.__version__} finds none"


def _connected_by(device: torch.device) -> str:
    """Name the libraries that exchange the gradients and that connected the ranks."""
    by = "MPI" if hvd.mpi_enabled() else "gloo"
    return by if device.type == "cpu" else f"NCCL and {by}"


if __name__ == "__main__":
    main()
