"""Train a picture classifier on parameter servers: one program for all roles, which TF_CONFIG assigns.

Parameter servers hold the variables. Workers compute gradients, each on a batch of its own, or all together on one
batch. The chief distributes the batches and writes checkpoints, TensorBoard scalars, metrics.jsonl and the final
model into the workspace. An evaluator tests each checkpoint. The program reads pictures with labels (docs/data.md)
from a folder or from S3. A retry resumes from the newest checkpoint.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

import tensorflow as tf

from dtj_trainer import contract, progress
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.data.errors import exit_on_data_error
from dtj_trainer.keras import gpus
from dtj_trainer.programs import freeze_imports
from dtj_trainer.ps import chief, connections, evaluator, server, worker_pictures
from dtj_trainer.ps import cluster as clusters
from dtj_trainer.ps.options import ServerOptions, parse
from dtj_trainer.ps.state import NotOurCheckpoint
from dtj_trainer.train.loop import LossNotFinite, Stopped
from dtj_trainer.train.stop import EXIT_CODE, StopRequest, end_when_stopped

log = logging.getLogger("dtj_trainer.programs.ps_image_classification")


def main(arguments: list[str] | None = None) -> None:
    """Run the program in its role.

    Exits with 143 after SIGTERM, 65 when the data can't be used, 69 when replicas don't answer or a requested GPU is
    missing, 78 for an invalid TF_CONFIG.
    """
    assert __doc__ is not None
    freeze_imports()
    options = parse(arguments, "dtj_trainer.programs.ps_image_classification", __doc__)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)
    server.quieten_tensorflow()
    try:
        cluster = clusters.from_environment()
    except clusters.BadCluster as error:
        print(f"BadCluster: {error}", file=sys.stderr, flush=True)
        sys.exit(contract.EXIT_CONFIG)
    log.info("this is %s of %d workers and %d parameter servers", cluster.task, cluster.workers, cluster.ps)
    gpus.need_what_was_asked_for()
    if cluster.task.type != "evaluator":
        connections.give_up_when_silent(cluster)
    if cluster.task.type == "chief":
        try:
            code = _coordinate(options, cluster)
        except Exception:
            log.exception("the training failed")
            code = 1
        _end(code)
    server.end_at_sigterm()
    if cluster.task.type == "evaluator":
        with exit_on_data_error():
            data = options.load()
        try:
            evaluator.run(options, data, cluster.workers)
        except NotOurCheckpoint as error:
            sys.exit(f"NotOurCheckpoint: {error}")
        return
    if cluster.task.type == "worker":
        with exit_on_data_error():
            data = options.load()
        worker_pictures.offer(data, cluster.task.index, worker_pictures.augmentation(options))
    server.serve(cluster)


def _coordinate(options: ServerOptions, cluster: clusters.Cluster) -> int:
    """Run the chief, from the wait for servers to the final files; return the exit code."""
    stop = StopRequest()
    # Exit some time after SIGTERM even without a checkpoint: the chief can't save one while no worker answers.
    end_when_stopped(stop, "no checkpoint was made")
    try:
        if not clusters.wait_for(
            cluster, cluster.tasks("ps", "worker"), clusters.peer_timeout(), lambda: stop.requested
        ):
            return EXIT_CODE
        pulse = chief.Pulse()
        chief.end_when_stalled(pulse, cluster, lambda what: _end(_failed(FailureClass.CONNECTION_LOST, what)))
        chief.train(options, cluster, stop, pulse)
    except Stopped as stopped:
        log.info("%s", stopped)
        return EXIT_CODE
    except clusters.TasksUnreachable as error:
        return _failed(FailureClass.PEERS_UNREACHABLE, str(error))
    except (LossNotFinite, NotOurCheckpoint) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    except SystemExit as refusal:
        print(refusal, file=sys.stderr, flush=True)
        return 1
    except Exception as error:
        lost = _lost(cluster, error)
        if not lost:
            raise
        named = ", ".join(f"{task} at {cluster.address(task)}" for task in lost)
        return _failed(
            FailureClass.CONNECTION_LOST, f"{named} does not answer: {str(error).splitlines()[0][:300]}"
        )
    return 0


def _lost(cluster: clusters.Cluster, error: Exception) -> list[clusters.Task]:
    """List the tasks whose loss caused this error. The error depends on the interrupted operation, and may be
    wrapped.
    """
    servers = clusters.silent(cluster, "ps")
    if servers:
        return servers
    kinds = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    message = str(error)
    # A task that was replaced before the check answers, but does not know the objects of the former task.
    replaced = (
        "Unable to find the relevant tensor remote_handle" in message or "unknown device" in message.lower()
    )
    if not replaced and not isinstance(getattr(error, "original_exception", error), kinds):
        return []
    return clusters.silent(cluster, "worker") or clusters.blamed(message)


def _failed(cause: FailureClass, message: str) -> int:
    progress.failed(cause, message)
    print(f"{cause}: {message}", file=sys.stderr, flush=True)
    return contract.EXIT_UNAVAILABLE


def _end(code: int) -> NoReturn:
    """End at once, because the coordinator's threads may wait for a lost worker."""
    progress.flush()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
