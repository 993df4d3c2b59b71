"""The GPUs that TensorFlow finds, beside those that the replica asked for."""

from __future__ import annotations

import logging

import tensorflow as tf

from dtj_trainer.programs import accelerator

log = logging.getLogger("dtj_trainer.programs")


def need_what_was_asked_for() -> None:
    """End the process when the replica asked for accelerators and TensorFlow finds none.

    Without accelerators nothing is asked of TensorFlow.
    """
    asked = accelerator.asked()
    if not asked:
        return
    found = len(tf.config.list_physical_devices("GPU"))
    accelerator.need_gpus(found, without_gpus())
    if found > 1:
        log.warning(
            "TensorFlow computes on the first of the %d GPUs of this replica: give each replica one", found
        )


def without_gpus() -> str:
    """Why TensorFlow finds no GPU, as far as it is known."""
    if not tf.test.is_built_with_cuda():
        return f"TensorFlow {tf.__version__} is built without CUDA"
    return f"TensorFlow {tf.__version__} finds none: its first lines with TF_CPP_MIN_LOG_LEVEL=0 say why"
