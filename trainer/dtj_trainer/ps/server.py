"""The work of a parameter server or a worker: run a TensorFlow server for the chief."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING

import tensorflow as tf

from dtj_trainer.train.stop import EXIT_CODE
from dtj_trainer.train.threads import available_processors

if TYPE_CHECKING:
    from types import FrameType

    from dtj_trainer.ps.cluster import Cluster


_LENGTH = 300


_GOOD_NEWS = "has been recovered"


def quieten_tensorflow() -> None:
    """Make TensorFlow log only errors and the recovery of workers, with one line each.

    The coordinator reports a lost worker by pages of nested messages.
    """
    logging.getLogger("absl").setLevel(logging.WARNING)
    logger = logging.getLogger("tensorflow")
    logger.handlers.clear()  # Remove TensorFlow's own handler: the root logger has one.
    logger.setLevel(logging.INFO)
    logger.addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if record.levelno < logging.ERROR and _GOOD_NEWS not in text:
        return False
    record.msg, record.args = text.strip().partition("\n")[0][:_LENGTH], ()
    return True


log = logging.getLogger(__name__)


def end_at_sigterm() -> None:
    """Make SIGTERM end this process at once with 143, because the process has nothing to save."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        os._exit(EXIT_CODE)

    signal.signal(signal.SIGTERM, end)


def warn_of_idle_gpus(gpus: int) -> None:
    """Warn of idle GPUs: a worker computes on its first GPU only."""
    if gpus > 1:
        log.warning(
            "this replica has %d GPUs and computes on the first one alone: give each worker one GPU "
            "(replicaSpecs.worker.gpus: 1), and the job more workers",
            gpus,
        )


def serve(cluster: Cluster) -> None:
    """Serve the chief, and any later chief; never returns."""
    if cluster.task.type == "worker":
        warn_of_idle_gpus(len(tf.config.list_physical_devices("GPU")))
    processors = max(int(available_processors()), 1)
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=processors,
        # An operation that waits for another task holds a thread. With fewer threads than tasks, operations deadlock.
        inter_op_parallelism_threads=max(processors, cluster.workers + cluster.ps + 2),
    )
    server = tf.distribute.Server(
        tf.train.ClusterSpec({kind: list(hosts) for kind, hosts in cluster.addresses.items()}),
        job_name=cluster.task.type,
        task_index=cluster.task.index,
        protocol="grpc",
        config=config,
    )
    log.info("%s serves at %s", cluster.task, server.target)
    while True:
        # server.join() never returns to Python, so that the handler of SIGTERM would not run.
        signal.pause()
