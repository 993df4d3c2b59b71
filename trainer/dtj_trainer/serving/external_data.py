"""Refuses ONNX files whose tensors lie in other files: the server reads no path that a model names.

The file is read on the level of protobuf's wire format, so that the server needs no package `onnx`. Field numbers are
those of onnx.proto3.
"""

from __future__ import annotations

from dtj_trainer.serving.errors import ModelDamaged

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
"""Which fields of a message hold messages in which a tensor may be."""
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
        "the ONNX model has tensors in other files; one with all tensors in its own file is served"
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
