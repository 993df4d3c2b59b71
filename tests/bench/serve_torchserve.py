"""TorchServe's handler of an ONNX model, which is in the archive as `model.onnx`. Runs in TorchServe's environment.

An answer is the five likeliest classes with their probabilities. The variable BENCH_THREADS has the threads of a run.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image


class Classifier:
    """See TorchServe: one in each worker."""

    def __init__(self) -> None:
        self._session: Any = None

    def initialize(self, context: Any) -> None:
        """See TorchServe."""
        folder = Path(context.system_properties["model_dir"])
        self._session = session_of(folder, int(os.environ["BENCH_THREADS"]))

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[dict[str, float]]:
        """See TorchServe: `data` has the requests of a batch."""
        del context
        inputs = np.stack([pixels_of(bytes(each.get("body") or each["data"])) for each in data])
        return [likeliest(output) for output in self._session.run(None, {"pixels": inputs})[0]]


def session_of(folder: Path, threads: int) -> Any:
    """A session with the settings of dtj's: its threads spin for a moment, within a run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.spin_duration_us", "20")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(folder / "model.onnx", options)


def pixels_of(content: bytes) -> np.ndarray:
    """The pixels of a picture file of the model's size."""
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def likeliest(output: np.ndarray) -> dict[str, float]:
    """The five likeliest classes."""
    values = np.exp(output - output.max())
    values /= values.sum()
    return {str(place): float(values[place]) for place in np.argsort(-values)[:5]}
