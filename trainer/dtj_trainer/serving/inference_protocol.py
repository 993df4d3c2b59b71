"""The routes of the Open Inference Protocol, version 2, which KServe and Triton also have.

https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import reprlib
import threading
from contextlib import nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Request, Response

from dtj_trainer.serving.errors import Refused, bad
from dtj_trainer.serving.loaded_model import Tensor
from dtj_trainer.serving.service import input_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dtj_trainer.serving.service import Service


# Tensors of the Open Inference Protocol, in JSON and in binary form.
#
# https://github.com/kserve/open-inference-protocol, and its extension for binary tensors. In the binary form, a JSON
# object comes first, whose length is in the header Inference-Header-Content-Length; the tensors follow in the order
# of the object, rows first, little-endian.

_MAX_ID = 1024
_SPARE = 1000
"""How many more values, lists, objects and texts a request may have than its tensors need."""


_LARGE_BYTES = 1 << 20
_one_large = threading.Lock()
"""The lock to parse large requests one at a time: parsed numbers take several times the memory of the text."""


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


# Make decoder and encoder once: with these options, json.loads and json.dumps would make new ones for each call.
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class Wanted(NamedTuple):
    """An output that a request asks for. `place`: its index in the model's outputs."""

    place: int
    binary: bool


class Inference(NamedTuple):
    """A request, checked against a model."""

    id: str | None
    inputs: dict[str, np.ndarray]
    outputs: tuple[Wanted, ...]


def read_inference(
    body: bytes,
    header_length: str | None,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    max_batch: int,
    max_json: int,
) -> Inference:
    """Read a request's body. Raises Refused (400, 413), which says what is wrong and what would be right."""
    header, binary = _split(body, header_length)
    if len(header) > max_json:
        message = (
            f"the request has more than {max_json} bytes of JSON (--max-json): send tensors as binary data"
        )
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "size", message)
    _check_counts(header, inputs, max_batch)
    with _one_large if len(header) > _LARGE_BYTES else nullcontext():
        return _read(header, binary, inputs, outputs, max_batch)


def _read(
    header: bytes, binary: memoryview, inputs: Sequence[Tensor], outputs: Sequence[Tensor], max_batch: int
) -> Inference:
    try:
        read = _DECODER.decode(header.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise bad(f"the request is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise bad("the request has to be a JSON object with `inputs`")
    id_ = read.get("id")
    if id_ is not None and not (isinstance(id_, str) and len(id_) <= _MAX_ID):
        raise bad(f"`id` has to be a text of at most {_MAX_ID} characters")
    found = _inputs(_list(read, "inputs"), binary, inputs, max_batch)
    all_binary = _parameters(read).get("binary_data_output", False) is True
    return Inference(id_, found, _outputs(read, outputs, binary=all_binary))


def _split(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    if header_length is None:
        return body, memoryview(b"")
    if not (header_length.isascii() and header_length.isdecimal() and len(header_length) < 12):
        raise bad(f"Inference-Header-Content-Length: {header_length[:50]!r} is no number of bytes")
    length = int(header_length)
    if length > len(body):
        raise bad(f"Inference-Header-Content-Length is {length}, and the body has {len(body)} bytes")
    return body[:length], memoryview(body)[length:]


def _check_counts(header: bytes, inputs: Sequence[Tensor], max_batch: int) -> None:
    """Refuse, before it is parsed, JSON that would take much more memory than the model's inputs do."""
    if len(header) <= _SPARE:
        return
    values = max_batch * sum(math.prod(each.shape) for each in inputs)
    lists = max_batch * sum(sum(itertools.accumulate((1, *each.shape[:-1]), operator.mul)) for each in inputs)
    for sign, most, what in (
        (b",", values, "values"),
        (b"[", lists, "lists"),
        (b"{", 0, "objects"),
        (b'"', 0, "texts"),
    ):
        if header.count(sign) > most + _SPARE:
            raise bad(f"the request has more {what} than the model takes in a batch")


def _inputs(
    read: list[Any], binary: memoryview, inputs: Sequence[Tensor], max_batch: int
) -> dict[str, np.ndarray]:
    wanted = {each.name: each for each in inputs}
    found: dict[str, np.ndarray] = {}
    at = 0
    for one in read:
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(name, str) or name not in wanted or name in found:
            raise bad(
                f"`inputs` has to have each of {', '.join(wanted)} once, by its `name`; found {_shown(name)}"
            )
        shape = _shape(one, wanted[name], max_batch)
        size = _parameters(one).get("binary_data_size")
        if size is None:
            found[name] = _from_json(one, wanted[name], shape)
        else:
            found[name] = _from_bytes(binary, at, size, wanted[name], shape)
            at += found[name].nbytes
    if at != len(binary):
        raise bad(
            f"{len(binary)} bytes follow the JSON object, but the `binary_data_size` of all inputs sum up to {at}"
        )
    if missing := wanted.keys() - found.keys():
        raise bad(f"`inputs` lacks {', '.join(sorted(missing))}")
    if len({len(values) for values in found.values()}) > 1:
        raise bad("the first number of `shape`, the batch, has to be the same for all inputs")
    return found


def _shape(one: dict[str, Any], wanted: Tensor, max_batch: int) -> tuple[int, ...]:
    if one.get("datatype") != wanted.datatype:
        raise bad(
            f"`datatype` of {wanted.name} is {_shown(one.get('datatype'))}; the model takes {wanted.datatype}"
        )
    shape = one.get("shape")
    whole = isinstance(shape, list) and all(isinstance(size, int) and size is not True for size in shape)
    if not whole or not shape or tuple(shape[1:]) != wanted.shape or shape[0] < 1:
        raise bad(f"`shape` of {wanted.name} is {_shown(shape)}; the model takes {['batch', *wanted.shape]}")
    if shape[0] > max_batch:
        raise bad(f"the batch has {shape[0]} examples; at most {max_batch} are taken at once (--max-batch)")
    return tuple(shape)


def _from_bytes(
    binary: memoryview, at: int, size: object, wanted: Tensor, shape: tuple[int, ...]
) -> np.ndarray:
    needed = math.prod(shape) * wanted.dtype.itemsize
    if size != needed or isinstance(size, bool):
        raise bad(
            f"`binary_data_size` of {wanted.name} is {_shown(size)}; its shape and type need {needed} bytes"
        )
    if at + needed > len(binary):
        raise bad(f"the body ends before the {needed} bytes of {wanted.name}")
    values = np.frombuffer(binary, wanted.dtype.newbyteorder("<"), math.prod(shape), at).reshape(shape)
    if wanted.datatype == "BOOL" and (values.view(np.uint8) > 1).any():
        raise bad(f"{wanted.name} has other bytes than 0 and 1 for BOOL")
    return values.astype(wanted.dtype)  # A copy, so that the body can be freed.


def _from_json(one: dict[str, Any], wanted: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    if wanted.datatype == "FP16":
        raise bad(f"{wanted.name} is of FP16, which JSON has no form for: send it as binary data")
    values = _flat(_list(one, "data"), wanted, shape)
    kinds: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
    # Check the types first: numpy would make an array of texts, each as large as the longest of them.
    if set(map(type, values)) <= kinds[wanted.dtype.kind]:
        try:
            read = np.array(values, np.float64 if wanted.dtype.kind == "f" else None)
        except OverflowError:
            read = np.array(None)
        if read.dtype.kind in "biuf" and _in_range(read, wanted.dtype):
            return read.astype(wanted.dtype).reshape(shape)
    raise bad(f"`data` of {wanted.name} has values that are not of {wanted.datatype}")


def _flat(data: list[Any], wanted: Tensor, shape: tuple[int, ...]) -> list[Any]:
    """Return the values of `data`, which is flat or has the form of `shape`."""
    for size in shape[1:]:
        if not isinstance(data[0], list):
            break
        if set(map(type, data)) != {list} or set(map(len, data)) != {size}:
            raise bad(f"the lists in `data` of {wanted.name} do not have the form of `shape`, {list(shape)}")
        data = list(itertools.chain.from_iterable(data))
    if len(data) != math.prod(shape):
        raise bad(f"`data` of {wanted.name} has {len(data)} values, but its `shape` is {list(shape)}")
    return data


def _in_range(values: np.ndarray, dtype: np.dtype[np.generic]) -> bool:
    if dtype.kind == "b":
        return True
    if dtype.kind == "f":
        return bool((np.abs(values) <= np.finfo(dtype.name).max).all())
    info = np.iinfo(dtype.name)
    return int(values.min()) >= info.min and int(values.max()) <= info.max


def _outputs(read: dict[str, Any], outputs: Sequence[Tensor], *, binary: bool) -> tuple[Wanted, ...]:
    if read.get("outputs") in (None, []):
        return tuple(Wanted(place, binary) for place in range(len(outputs)))
    names = [each.name for each in outputs]
    found = []
    for one in _list(read, "outputs"):
        name = one.get("name") if isinstance(one, dict) else None
        if name not in names:
            raise bad(f"`outputs` asks for {_shown(name)}; the model has {', '.join(names)}")
        found.append(Wanted(names.index(name), _parameters(one).get("binary_data", binary) is True))
    if len({each.place for each in found}) != len(found):
        raise bad("`outputs` asks for an output twice")
    return tuple(found)


def _list(read: dict[str, Any], name: str) -> list[Any]:
    found = read.get(name)
    if not isinstance(found, list) or not found:
        raise bad(f"`{name}` has to be a list of at least one entry")
    return found


def _parameters(read: Mapping[str, Any]) -> Mapping[str, Any]:
    found = read.get("parameters")
    if found is not None and not isinstance(found, dict):
        raise bad("`parameters` has to be an object")
    return found or {}


def _shown(value: object) -> str:
    return reprlib.repr(value)


def written(
    asked: Inference, name: str, version: str, outputs: Sequence[Tensor], found: Sequence[np.ndarray]
) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the length of the JSON object before binary tensors; None without any.

    Raises ValueError for outputs in JSON that are not finite.
    """
    entries, blobs = [], []
    for place, binary in asked.outputs:
        tensor, values = outputs[place], found[place]
        entry: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(values.shape),
        }
        if binary or tensor.datatype == "FP16":
            blobs.append(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes())
            entry["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            entry["data"] = values.ravel().tolist()
        entries.append(entry)
    answer: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": entries}
    if asked.id is not None:
        answer["id"] = asked.id
    text = _ENCODER.encode(answer).encode()
    return b"".join([text, *blobs]), len(text) if blobs else None


PREFIX = "/v2"
LENGTH = "Inference-Header-Content-Length"
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object", "required": ["inputs"]}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


def router(service: Service, server_version: str) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix=PREFIX, tags=["Open Inference Protocol"])

    @routes.get("")
    async def server() -> dict[str, Any]:
        """Describe the server."""
        return {"name": "dtj", "version": server_version, "extensions": ["binary_tensor_data"]}

    @routes.get("/health/live")
    async def live() -> dict[str, bool]:
        """Say that the server answers."""
        return {"live": True}

    @routes.get("/health/ready")
    async def ready() -> dict[str, bool]:
        """Say that all models are loaded; the server answers nothing before."""
        return {"ready": True}

    @routes.get("/models/{name}")
    @routes.get("/models/{name}/versions/{version}")
    async def metadata(name: str, version: str | None = None) -> dict[str, Any]:
        """Describe a model's inputs and outputs."""
        model = service.model(service.slot(name), version)
        return {
            "name": name,
            "versions": [model.version],
            "platform": "onnxruntime_onnx",
            "inputs": _listed(model.inputs),
            "outputs": _listed(model.outputs),
        }

    @routes.get("/models/{name}/ready")
    @routes.get("/models/{name}/versions/{version}/ready")
    async def model_ready(name: str, version: str | None = None) -> dict[str, Any]:
        """Say that a model is loaded."""
        service.model(service.slot(name), version)
        return {"name": name, "ready": True}

    @routes.post("/models/{name}/infer", openapi_extra=_BODY)
    @routes.post("/models/{name}/versions/{version}/infer", openapi_extra=_BODY)
    async def infer(name: str, request: Request, version: str | None = None) -> Response:
        """Compute a model's outputs for a batch."""
        return await inference(service, name, request, version)

    return routes


async def inference(service: Service, name: str, request: Request, version: str | None = None) -> Response:
    """Compute a model's outputs for a batch. Raises Refused."""
    slot = service.slot(name)
    model = service.model(slot, version)
    with service.room.enter() as held:
        body = await service.body(request, held)
        asked = await service.decoded(
            len(body),
            read_inference,
            body,
            request.headers.get(LENGTH),
            model.inputs,
            model.outputs,
            max_batch=service.limits.batch,
            max_json=service.limits.json,
        )
        held.add(input_bytes(model, len(next(iter(asked.inputs.values())))) - len(body))
        del body
        found = await service.outputs(slot, model, asked.inputs)
    try:
        content, length = written(asked, name, model.version, model.outputs, found)
    except ValueError as error:
        message = "the model's outputs are not finite, and JSON has no NaN or infinity: ask for binary data"
        raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "model", message) from error
    if length is None:
        return Response(content, media_type="application/json")
    return Response(content, media_type="application/octet-stream", headers={LENGTH: str(length)})


def _listed(found: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [{"name": each.name, "datatype": each.datatype, "shape": [-1, *each.shape]} for each in found]
