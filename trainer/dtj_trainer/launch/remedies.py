"""Remedies for errors whose messages do not name the remedy."""

from __future__ import annotations

from collections.abc import Sequence

_GPU_FULL = "the GPU is out of memory: `nvidia-smi` shows the processes that hold it"
_REMEDIES = {
    "'Variable' object has no attribute 'ref'": (
        "the script is one for Keras 2: set TF_USE_LEGACY_KERAS=1 in spec.env, with tf_keras in the image"
        " (docs/own-script.md)"
    ),
    # NCCL, cuBLAS and cuDNN, at their start on a GPU that another process has filled.
    "Failed to CUDA calloc": _GPU_FULL,
    "Failed to CUDA malloc": _GPU_FULL,
    "CUBLAS_STATUS_ALLOC_FAILED": _GPU_FULL,
    "CUDNN_STATUS_ALLOC_FAILED": _GPU_FULL,
}
"""Remedies by a part of a program's last lines."""
_LINES = 5
"""Libraries may print further lines after the error."""


def remedy(last_lines: Sequence[str]) -> str | None:
    """Return the remedy for the error in a program's last lines; None for an unknown error."""
    text = "\n".join(last_lines[-_LINES:])
    return next((what for error, what in _REMEDIES.items() if error in text), None)
