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
from dtj_trainer.serving.places import MAX_MANIFEST_BYTES, file_of, read_checked, read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.serving.places import ModelPlace


# refuse_external_data refuses ONNX files whose tensors lie in other files: the server must not read paths that a
# model names.
#
# The file is read on the level of protobuf's wire format, so that the server needs no package `onnx`. Field numbers
# are those of onnx.proto3.

_GRAPHS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "function": {7: "node", 11: "attribute"},
    "training": {1: "graph", 2: "graph"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""By kind of a message: the numbers and kinds of its fields in which a tensor may be."""
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BITS = 64


def refuse_external_data(content: bytes) -> None:
    """Raise ModelDamaged if a tensor of the ONNX model is outside of `content`, or `content` is no protobuf."""
    view = memoryview(content)
    todo = [("model", 0, len(view))]
    while todo:
        kind, at, end = todo.pop()
        while at < end:
            key, at = _varint(view, at, end)
            field, wire = key >> 3, key & 7
            if kind == "tensor" and field in (_EXTERNAL_DATA, _DATA_LOCATION):
                if wire != _VARINT:
                    raise _external()
                value, at = _varint(view, at, end)
                if value:
                    raise _external()
                continue
            start, at = _skip(view, at, end, wire)
            inner = _GRAPHS[kind].get(field)
            if inner and wire == _BYTES:
                todo.append((inner, start, at))


def _external() -> ModelDamaged:
    return ModelDamaged(
        "the ONNX model has tensors in other files: dtj serves only models with all tensors in one file"
    )


def _skip(view: memoryview, at: int, end: int, wire: int) -> tuple[int, int]:
    """Return where the content of a field starts and ends."""
    start = at
    if wire == _VARINT:
        _, at = _varint(view, at, end)
    elif wire == _FIXED64:
        at += 8
    elif wire == _FIXED32:
        at += 4
    elif wire == _BYTES:
        size, start = _varint(view, at, end)
        at = start + size
    else:
        raise ModelDamaged("the model is no ONNX file")
    if at > end:
        raise ModelDamaged("the model is no ONNX file, or one that was cut off")
    return start, at


def _varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < _MAX_VARINT_BITS:
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ModelDamaged("the model is no ONNX file, or one that was cut off")


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


def load(place: ModelPlace, threads: int) -> LoadedModel:
    """Load a model, and run it once. `threads`: those of one run.

    Raises ModelMissing, ModelDamaged (also while the model is being written) or StoreUnavailable.
    """
    manifest = read_manifest(place.read(NAME, MAX_MANIFEST_BYTES))
    read = Description.from_json(read_checked(place, manifest, MODEL_DESCRIPTION_FILE, description.MAX_BYTES))
    content = read_checked(place, manifest, MODEL_ONNX_FILE, MAX_BYTES)
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
    except Exception as error:  # onnxruntime's errors have no common base class.
        raise ModelDamaged(f"{place.uri}: onnxruntime can't run the model: {first_line(error)}") from error
    _check_description(loaded)
    return loaded


def _session(content: bytes, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A thread that spins while it waits for work takes the processor from the event loop and from clients: by default
    # for milliseconds, and after a run too. Within a run, it spins no longer than it takes to wake up.
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(_SPIN_MICROSECONDS))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Log errors alone: the warnings are about constants that the exporters made.
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _tensor(node: onnxruntime.NodeArg) -> Tensor:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _TYPES:
        raise ModelDamaged(f"{node.name} has the type {node.type}, which dtj serve does not support")
    if not node.shape or isinstance(node.shape[0], int):
        raise ModelDamaged(
            f"{node.name} of the ONNX model has a fixed batch size: `dtj export` makes models for any batch size"
        )
    shape = tuple(size if isinstance(size, int) else -1 for size in node.shape[1:])
    return Tensor(node.name, _TYPES[kind], shape)


def _check_description(model: LoadedModel) -> None:
    """Raise ModelDamaged if model.json does not fit model.onnx."""
    for each in model.inputs:
        if -1 in each.shape:
            raise ModelDamaged(
                f"{model.uri}: the input {each.name} has an axis without a fixed size besides the batch axis"
            )
    form, labels, first = model.description.preprocessing, model.description.labels, model.inputs[0]
    if labels and model.classes not in (None, len(labels)):
        raise ModelDamaged(
            f"{model.uri}: {MODEL_DESCRIPTION_FILE} has {len(labels)} labels, but the model has {model.classes} "
            "classes"
        )
    if form:
        sides = (form.size, form.size)
        wanted = (form.channels, *sides) if form.layout == "NCHW" else (*sides, form.channels)
        if len(model.inputs) != 1 or first.shape != wanted or first.datatype not in ("UINT8", "FP32"):
            raise ModelDamaged(
                f"{model.uri}: {MODEL_DESCRIPTION_FILE} describes pictures of shape {wanted}, but the model takes "
                f"{first.datatype} {first.shape}"
            )
