"""Models of Keras 3, and SavedModels, as trained models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow reads the variable when it is imported.

import keras
import numpy as np
import tensorflow as tf
import tf2onnx  # Fail early: Keras imports tf2onnx in the middle of the export.

from dtj_trainer.serving.errors import NotExportable, first_line
from dtj_trainer.serving.forms import Input

if TYPE_CHECKING:
    from pathlib import Path

_SIGNATURE = "serving_default"


class TrainedKerasModel:
    """See TrainedModel."""

    def __init__(self, model: Any) -> None:
        self.framework = (
            f"keras {keras.__version__}, tensorflow {tf.__version__}, tf2onnx {tf2onnx.__version__}"
        )
        self._model = model

    @property
    def inputs(self) -> tuple[Input, ...]:
        """See TrainedModel."""
        return tuple(_input(each.name, each.dtype, each.shape) for each in self._model.inputs)

    def answer(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """See TrainedModel."""
        given = inputs[0] if len(inputs) == 1 else inputs
        found = self._model(given, training=False)
        return [np.asarray(each) for each in tf.nest.flatten(found)]

    def write_onnx(self, path: Path) -> None:
        """See TrainedModel."""
        # Call the model once: the exporter refuses a model that was never called.
        self.answer([np.zeros((1, *each.shape), each.dtype) for each in self.inputs])
        try:
            self._model.export(path, format="onnx", verbose=False)
        except Exception as error:  # The converter raises many classes.
            raise NotExportable(f"tf2onnx can't convert the model to ONNX: {first_line(error)}") from error


def keras_model(path: Path) -> TrainedKerasModel:
    """Load a `.keras` file. Raises NotExportable."""
    try:
        model = keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises many classes for files that it can't read.
        raise NotExportable(f"{path} can't be loaded by Keras: {first_line(error)}") from error
    if not getattr(model, "inputs", None):
        raise NotExportable(f"{path} has no inputs of a known shape: call the model once before it is saved")
    return TrainedKerasModel(model)


def saved_model(folder: Path) -> TrainedKerasModel:
    """Load the signature `serving_default` of a SavedModel as a layer. Raises NotExportable."""
    try:
        signatures = tf.saved_model.load(str(folder)).signatures
        if _SIGNATURE not in signatures:
            raise NotExportable(
                f"{folder} has no signature {_SIGNATURE}, only: {', '.join(signatures) or 'none'}"
            )
        asked = signatures[_SIGNATURE].structured_input_signature[1]
        if len(asked) != 1:
            raise NotExportable(
                f"{folder} has {len(asked)} inputs; only a SavedModel with one can be exported"
            )
        ((name, spec),) = asked.items()
        found = _input(name, spec.dtype.name, spec.shape)
        pixels = keras.Input(found.shape, dtype=found.dtype, name=name)
        layer = keras.layers.TFSMLayer(str(folder), call_endpoint=_SIGNATURE)
        outputs = list(layer(pixels).values())
        return TrainedKerasModel(keras.Model(pixels, outputs[0] if len(outputs) == 1 else outputs))
    except NotExportable:
        raise
    except Exception as error:  # TensorFlow raises many classes for folders that it can't read.
        raise NotExportable(f"{folder} can't be loaded by TensorFlow: {first_line(error)}") from error


def _input(name: str, dtype: str, shape: Any) -> Input:
    if shape is None or len(shape) == 0 or shape[0] is not None:
        raise NotExportable(f"the input {name} has a fixed batch size: its first axis has to be None")
    if any(size is None for size in shape[1:]):
        raise NotExportable(f"the input {name} has an axis without a fixed size besides the batch axis")
    return Input(str(dtype), tuple(int(size) for size in shape[1:]))
