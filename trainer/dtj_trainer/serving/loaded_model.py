"""A model that the server has in memory, from files that match their manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnxruntime

from dtj_trainer.artifacts.model_manifest import NAME
from dtj_trainer.contract import MODEL_DESCRIPTION_FILE, MODEL_ONNX_FILE
from dtj_trainer.serving import description
from dtj_trainer.serving.description import Description
from dtj_trainer.serving.errors import ModelDamaged, first_line
from dtj_trainer.serving.external_data import refuse_external_data
from dtj_trainer.serving.model_manifest import MAX_BYTES as MAX_MANIFEST_BYTES
from dtj_trainer.serving.model_manifest import check, file_of, read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.artifacts.model_manifest import ModelManifest
    from dtj_trainer.serving.places import Place

MAX_BYTES = 2 << 30
"""Limit of model.onnx, as of any protobuf file."""
_VERSION_DIGITS = 12
_SPIN_MICROSECONDS = 20
_TYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float": "FP32",
    "double": "FP64",
}
"""Names of the Open Inference Protocol for types of ONNX."""
NUMPY_TYPES = {
    **{name: np.dtype(name.lower()) for name in _TYPES.values() if not name.startswith("FP")},
    "FP16": np.dtype("float16"),
    "FP32": np.dtype("float32"),
    "FP64": np.dtype("float64"),
}


class Tensor(NamedTuple):
    """An input or output. `datatype`: as in the Open Inference Protocol. `shape`: without the batch; -1 is any."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type in numpy."""
        return NUMPY_TYPES[self.datatype]


@dataclass(frozen=True)
class LoadedModel:
    """One version of a model. Threads may share it.

    `version`: the first digits of the SHA-256 of model.onnx.
    """

    uri: str
    version: str
    description: Description
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    session: onnxruntime.InferenceSession

    @property
    def classes(self) -> int | None:
        """The number of classes; None if the model is no classifier of which the meaning of the output is known."""
        first = self.outputs[0]
        classifies = len(first.shape) == 1 and first.shape[0] > 1 and self.description.meaning is not None
        return first.shape[0] if classifies and first.datatype.startswith("FP") else None

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for a batch, in the order of `outputs`."""
        found: list[np.ndarray] = self.session.run([output.name for output in self.outputs], dict(inputs))
        return found


def load(place: Place, threads: int) -> LoadedModel:
    """Load a model, and run it once. `threads`: those of one run.

    Raises ModelMissing, ModelDamaged (also while the model is being written) or StoreUnavailable.
    """
    manifest = read_manifest(place.read(NAME, MAX_MANIFEST_BYTES))
    read = Description.from_json(_checked(place, manifest, MODEL_DESCRIPTION_FILE, description.MAX_BYTES))
    content = _checked(place, manifest, MODEL_ONNX_FILE, MAX_BYTES)
    refuse_external_data(content)
    try:
        session = _session(content, threads)
        inputs = tuple(_tensor(each) for each in session.get_inputs())
        outputs = tuple(_tensor(each) for each in session.get_outputs())
        loaded = LoadedModel(
            place.uri,
            file_of(manifest, MODEL_ONNX_FILE).sha256[:_VERSION_DIGITS],
            read,
            inputs,
            outputs,
            session,
        )
        loaded.run({each.name: np.zeros((1, *each.shape), each.dtype) for each in inputs})
    except ModelDamaged:
        raise
    except Exception as error:  # onnxruntime raises classes of its own.
        raise ModelDamaged(f"{place.uri}: onnxruntime can't run the model: {first_line(error)}") from error
    _check_description(loaded)
    return loaded


def _checked(place: Place, manifest: ModelManifest, name: str, most: int) -> bytes:
    named = file_of(manifest, name)
    if named.size > most:
        raise ModelDamaged(f"{place.uri}: {name} has {named.size} bytes, and at most {most} are read")
    content = place.read(name, most)
    try:
        check(content, named)
    except ModelDamaged as error:
        raise ModelDamaged(f"{place.uri}: {error}") from error
    return content


def _session(content: bytes, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A thread that spins while it waits for work takes the processor from the event loop and from clients: by default
    # for milliseconds, and after a run too. Within a run, it spins no longer than it takes to wake up.
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(_SPIN_MICROSECONDS))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3  # Errors; warnings are about the exporters' constants.
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _tensor(node: onnxruntime.NodeArg) -> Tensor:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _TYPES:
        raise ModelDamaged(f"{node.name} is a {node.type}, which is not served")
    if not node.shape or isinstance(node.shape[0], int):
        raise ModelDamaged(f"{node.name} has a fixed batch; `dtj export` makes models with a dynamic one")
    shape = tuple(size if isinstance(size, int) else -1 for size in node.shape[1:])
    return Tensor(node.name, _TYPES[kind], shape)


def _check_description(model: LoadedModel) -> None:
    """Raise ModelDamaged if model.json does not fit model.onnx."""
    if any(-1 in each.shape for each in model.inputs):
        raise ModelDamaged(f"{model.uri}: an input has other axes than the batch without a fixed size")
    form, labels, first = model.description.preprocessing, model.description.labels, model.inputs[0]
    if labels and model.classes not in (None, len(labels)):
        raise ModelDamaged(f"{model.uri}: there are {len(labels)} labels and {model.classes} classes")
    if form:
        sides = (form.size, form.size)
        wanted = (form.channels, *sides) if form.layout == "NCHW" else (*sides, form.channels)
        if len(model.inputs) != 1 or first.shape != wanted or first.datatype not in ("UINT8", "FP32"):
            raise ModelDamaged(
                f"{model.uri}: {MODEL_DESCRIPTION_FILE} makes pictures {wanted}, and the model takes "
                f"{first.datatype} {first.shape}"
            )
