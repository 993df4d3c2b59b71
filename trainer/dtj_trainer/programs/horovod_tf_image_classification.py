"""Train a picture classifier in Keras by Horovod, on one rank or many, on CPUs or GPUs, without change.

Reads pictures with labels (docs/data.md) from a folder or from S3, trains, tests over all ranks at the end
of each epoch, and writes checkpoints, TensorBoard scalars, metrics.jsonl and the final model into the workspace,
which dtj-launch uploads. A retry resumes from the newest checkpoint.
"""

from __future__ import annotations

import logging
import os
import socket
import sys

# Set before the import: otherwise TensorFlow prints its build options on every rank.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from dtj_trainer.data.errors import exit_on_data_error
from dtj_trainer.keras.gpus import without_gpus
from dtj_trainer.keras.horovod_ranks import KerasRanks
from dtj_trainer.keras.model import KerasModel, KerasSaver
from dtj_trainer.keras.models import MODELS
from dtj_trainer.programs import freeze_imports
from dtj_trainer.train import accelerator
from dtj_trainer.train.options import parse
from dtj_trainer.train.picture_training import train
from dtj_trainer.train.threads import threads_per_rank

log = logging.getLogger("dtj_trainer.programs.horovod_tf_image_classification")


def main(arguments: list[str] | None = None) -> None:
    """Run the program. Exits with 143 after SIGTERM, 65 when the data can't be used, 69 without a requested GPU."""
    assert __doc__ is not None
    freeze_imports()
    name = "dtj_trainer.programs.horovod_tf_image_classification"
    options = parse(arguments, name, __doc__, MODELS, mixed_precision=False)
    hvd.init()
    # dtj-launch adds the rank to each line.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)
    device = _device()
    threads = threads_per_rank(hvd.local_size()) or int(os.environ["OMP_NUM_THREADS"])
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(threads, 2))
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    log.info(
        "one of %d ranks, %d of them on %s, on %s with %d threads; TensorFlow %s, Keras %s, Horovod over %s",
        hvd.size(),
        hvd.local_size(),
        socket.gethostname(),
        device,
        threads,
        tf.__version__,
        keras.__version__,
        ("" if device == "cpu" else "NCCL and ") + ("MPI" if hvd.mpi_enabled() else "gloo"),
    )
    with exit_on_data_error():
        data = options.load()
    ranks = KerasRanks()
    model = KerasModel(options, data, ranks)
    train(options, data, model, ranks, KerasSaver(options, data, model, ranks))
    hvd.shutdown()


def _device() -> str:
    """Make this rank's GPU the only visible one of its host; return `cpu` if no GPU was requested."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        accelerator.need_gpus(len(gpus), without_gpus())
        return "cpu"
    accelerator.need_nccl_of_horovod(len(gpus), hvd.local_size(), built=bool(hvd.nccl_built()))
    gpu = gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    return str(gpu.name)


if __name__ == "__main__":
    main()
