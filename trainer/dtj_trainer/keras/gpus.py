"""Compares the GPUs that TensorFlow finds with those that the replica requested."""

from __future__ import annotations

import logging

import tensorflow as tf

from dtj_trainer.train import accelerator

log = logging.getLogger("dtj_trainer.programs")


def need_what_was_asked_for() -> None:
    """End the process if the replica requested accelerators and TensorFlow finds none.

    Without a request, TensorFlow is not queried.
    """
    asked = accelerator.asked()
    if not asked:
        return
    found = len(tf.config.list_physical_devices("GPU"))
    accelerator.need_gpus(found, without_gpus())
    if found > 1:
        log.warning(
            "TensorFlow computes only on the first of this replica's %d GPUs: request one GPU a replica",
            found,
        )


def without_gpus() -> str:
    """Return why TensorFlow finds no GPU, if the reason is known."""
    if not tf.test.is_built_with_cuda():
        return f"TensorFlow {tf.__version__} is built without CUDA"
    return f"TensorFlow {tf.__version__} finds no GPU (TF_CPP_MIN_LOG_LEVEL=0 logs the reason at the start)"
