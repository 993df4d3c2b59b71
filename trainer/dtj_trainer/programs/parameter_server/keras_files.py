"""The final model as a file that Keras alone loads, and what it is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from dtj_trainer import contract

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.programs.parameter_server.state import State

MODEL = "model.keras"
DESCRIPTION = "model.json"


def write(model: keras.Model, state: State, facts: Mapping[str, object]) -> Path:
    """Write the model and its description, each whole or not at all, into the workspace; the folder."""
    folder = Path(contract.root()) / contract.MODEL
    folder.mkdir(parents=True, exist_ok=True)
    # The suffix says what it is to those who upload this folder, and Keras asks for its own.
    written = folder / f".{MODEL}.tmp.keras"
    model.save(written)
    _publish(written, folder / MODEL)
    description = {
        "model": state.model,
        "input": {"dtype": "float32", "shape": ["batch", *state.shape], "range": [0, 255]},
        "output": {"shape": ["batch", state.classes], "meaning": "logits"},
        "classes": state.classes,
        "parameters": model.count_params(),
        **facts,
        "files": {MODEL: "keras.models.load_model(file): needs Keras and TensorFlow alone"},
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    written = folder / f".{DESCRIPTION}.tmp"
    written.write_text(json.dumps(description, indent=2) + "\n")
    _publish(written, folder / DESCRIPTION)
    return folder


def _publish(written: Path, final: Path) -> None:
    descriptor = os.open(written, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    written.replace(final)
