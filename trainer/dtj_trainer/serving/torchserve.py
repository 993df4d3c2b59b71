"""The routes of TorchServe that its users type, and the pictures that they may send as inputs.

`app` adds the routes: /ping, /models, /models/NAME and /predictions/NAME. Not here: the Open Inference Protocol
(`inference_protocol`).
"""

from __future__ import annotations

import io
import threading
from contextlib import nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from PIL import Image

from dtj_trainer.data.errors import DataError
from dtj_trainer.data.formats.images import PictureForm, pixels_of
from dtj_trainer.serving.bodies import FIELD, picture_in
from dtj_trainer.serving.errors import Refused, bad
from dtj_trainer.serving.service import input_bytes

if TYPE_CHECKING:
    from dtj_trainer.serving.description import Preprocessing
    from dtj_trainer.serving.errors import Held
    from dtj_trainer.serving.loaded_model import LoadedModel
    from dtj_trainer.serving.service import Service, Slot


# example_of decodes a picture file within limits, and prepares the picture as the training's test does.

_FORMATS = ("PNG", "JPEG")
_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
_START_OF_SCAN = b"\xff\xda"
_MAX_SCANS = 100
"""The most scans of a progressive JPEG. A scan takes 12 bytes of the file, but the decoder goes over all pixels for
each. Encoders write about ten."""
_LARGE_PIXELS = 2_000_000
_FEW_BYTES = _FEW_PIXELS = 4096
_HEADER, _HEADER_END = b"IHDR", 33
_one_large = threading.Lock()
"""The lock to decode large pictures one at a time: memory then holds the pixels of only one of them."""


def example_of(
    content: bytes, form: Preprocessing, max_pixels: int, dtype: np.dtype[np.generic]
) -> np.ndarray:
    """Return a batch of one picture. Raises Refused for one that is no PNG or JPEG, is damaged or too large."""
    if not content:
        raise bad("the body is empty: send the file of a picture, or the field `data` of a form")
    if not content.startswith(_STARTS):
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "content",
            f"the body is neither a PNG nor a JPEG file: it begins with {content[:4].hex(' ')}",
        )
    if content.startswith(_STARTS[1]) and content.count(_START_OF_SCAN) > _MAX_SCANS:
        raise bad(f"the JPEG file has more than {_MAX_SCANS} scans")
    with _one_large if _pixels_to_decode(content, max_pixels) > _LARGE_PIXELS else nullcontext():
        try:
            pixels = pixels_of(content, PictureForm(form.size, form.channels, form.orient), where="the body")
        except DataError as error:
            raise bad(str(error)) from error
    return prepared(pixels, form, dtype)[None]


def is_small(content: bytes) -> bool:
    """Return whether a file is such a small PNG that decoding takes less time than the start of a thread."""
    sides = _size_of_small_png(content)
    return sides is not None and sides[0] * sides[1] <= _FEW_PIXELS


def _size_of_small_png(content: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG file of few bytes; None for others.

    A PNG file has its header in the first chunk. Only a forged file has more headers, and Pillow would use those.
    """
    plain = content[12:16] == _HEADER and content.count(_HEADER) == 1
    whole = _HEADER_END <= len(content) <= _FEW_BYTES
    if not (whole and plain and content.startswith(_STARTS[0])):
        return None
    return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])


def _pixels_to_decode(content: bytes, max_pixels: int) -> int:
    """Return the number of pixels by the file's header. Raises Refused."""
    width, height = _size_of_small_png(content) or _picture_size(content)
    if width * height > max_pixels:
        raise Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "pixels",
            f"the picture has {width} x {height} = {width * height} pixels; at most {max_pixels} are decoded",
        )
    return width * height


def _picture_size(content: bytes) -> tuple[int, int]:
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as opened:
            return opened.size
    except Exception as error:  # Pillow's readers raise many classes, also for too many pixels.
        raise bad(f"the picture can't be read: {error}") from error


def prepared(pixels: np.ndarray, form: Preprocessing, dtype: np.dtype[np.generic]) -> np.ndarray:
    """Return pixels (uint8; channels, height, width) as the model takes them."""
    if form.invert:
        pixels = 255 - pixels
    if form.range != (0.0, 255.0) or form.mean or form.deviation:
        low, high = form.range
        values = pixels.astype(np.float32) * np.float32((high - low) / 255) + np.float32(low)
        if form.mean:
            values -= np.array(form.mean, np.float32)[:, None, None]
        if form.deviation:
            values /= np.array(form.deviation, np.float32)[:, None, None]
        pixels = values
    ordered = pixels if form.layout == "NCHW" else pixels.transpose(1, 2, 0)
    return np.ascontiguousarray(ordered, dtype)


def shown(example: np.ndarray, form: Preprocessing) -> bytes:
    """Return an example as the model gets it (a batch of one) as a PNG file.

    Mean, deviation and range are undone, so that values are 0 to 255 again. An inverted picture stays inverted.
    """
    ordered = example[0] if form.layout == "NCHW" else example[0].transpose(2, 0, 1)
    values = ordered.astype(np.float32)
    if form.deviation:
        values *= np.array(form.deviation, np.float32)[:, None, None]
    if form.mean:
        values += np.array(form.mean, np.float32)[:, None, None]
    low, high = form.range
    values = (values - np.float32(low)) * np.float32(255 / (high - low))
    rows = np.rint(values).clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
    written = io.BytesIO()
    Image.fromarray(rows[:, :, 0] if form.channels == 1 else np.ascontiguousarray(rows)).save(written, "PNG")
    return written.getvalue()


BEST = 5
"""The number of classes in an answer."""
_FILE = {"schema": {"type": "string", "format": "binary"}}
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "image/png": _FILE,
            "image/jpeg": _FILE,
            "multipart/form-data": {"schema": {"type": "object", "properties": {FIELD: _FILE["schema"]}}},
        },
    }
}
"""The body of a picture's request, for OpenAPI."""


class Classified(NamedTuple):
    """A picture with a model's answer. `example`: the model's input, a batch of one. `output`: the output for it."""

    model: LoadedModel
    example: np.ndarray
    output: np.ndarray


def router(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(tags=["TorchServe"])
    answer: Any = {"response_model": dict[str, float]}

    @routes.get("/ping")
    async def ping() -> dict[str, str]:
        """Say that the server answers."""
        return {"status": "Healthy"}

    @routes.get("/models")
    async def models() -> dict[str, Any]:
        """List the models."""
        return {"models": [{"modelName": name, "modelUrl": slot.uri} for name, slot in service.slots.items()]}

    @routes.get("/models/{name}")
    @routes.get("/models/{name}/{version}")
    async def model(name: str, version: str | None = None) -> list[dict[str, Any]]:
        """Describe a model. The version `all` is that of the server's one."""
        slot = service.slot(name)
        service.model(slot, None if version == "all" else version)
        return [_described(slot, service)]

    versioned = "/predictions/{name}/{version}"

    @routes.put("/predictions/{name}", openapi_extra=BODY, operation_id="predict_by_put", **answer)
    @routes.post("/predictions/{name}", openapi_extra=BODY, operation_id="predict_by_post", **answer)
    @routes.put(versioned, openapi_extra=BODY, operation_id="predict_by_put_of_version", **answer)
    @routes.post(versioned, openapi_extra=BODY, operation_id="predict_by_post_of_version", **answer)
    async def predict(
        name: str, request: Request, labels: bool = False, version: str | None = None
    ) -> Response:
        """Classify a picture: the five likeliest classes with their probabilities, the likeliest first.

        The body is a PNG or JPEG file of any size, or a form with such a file in the field `data`. Classes are
        numbers; with `labels=true` names, if the model has them.
        """
        return await prediction(service, name, request, version, labels=labels)

    return routes


async def prediction(
    service: Service, name: str, request: Request, version: str | None = None, *, labels: bool = False
) -> Response:
    """Classify a picture. Raises Refused."""
    with service.room.enter() as held:
        found = await classified(service, name, request, held, version)
    return JSONResponse(likeliest(found.output, found.model, labels=labels))


def _example(
    body: bytes, content_type: str | None, form: Preprocessing, max_pixels: int, dtype: np.dtype[np.generic]
) -> np.ndarray:
    return example_of(picture_in(body, content_type), form, max_pixels, dtype)


async def classified(
    service: Service, name: str, request: Request, held: Held, version: str | None = None
) -> Classified:
    """Give the picture in a request's body to a model, and count its bytes in `held`. Raises Refused."""
    slot = service.slot(name)
    model = service.model(slot, version)
    form = model.description.preprocessing
    if form is None or model.classes is None:
        raise bad(_no_pictures(name, model))
    body = await service.body(request, held)
    held.add(input_bytes(model, 1))
    kind, dtype = request.headers.get("content-type"), model.inputs[0].dtype
    quick = len(body) if is_small(body) else None
    example = await service.decoded(quick, _example, body, kind, form, service.limits.pixels, dtype)
    held.add(-len(body))
    del body
    found = await service.outputs(slot, model, {model.inputs[0].name: example})
    return Classified(model, example, found[0][0])


def likeliest(output: np.ndarray, model: LoadedModel, *, labels: bool) -> dict[str, float]:
    """Return the likeliest classes and their probabilities. Raises Refused for an output that is not finite."""
    names = model.description.labels if labels else ()
    return {names[place] if names else str(place): value for place, value in best(output, model)}


def best(output: np.ndarray, model: LoadedModel) -> list[tuple[int, float]]:
    """Return numbers and probabilities of the likeliest classes, falling. Raises Refused as `likeliest` does."""
    values = output.astype(np.float64)
    if not np.isfinite(values).all():
        raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "model", "the model's outputs are not finite")
    if model.description.meaning == "logits":
        values = np.exp(values - values.max())
        values /= values.sum()
    order = np.argsort(-values, kind="stable")[:BEST]
    return [(int(place), float(values[place])) for place in order]


def _described(slot: Slot, service: Service) -> dict[str, Any]:
    model = slot.model
    form = model.description.preprocessing
    return {
        "modelName": slot.name,
        "modelVersion": model.version,
        "modelUrl": slot.uri,
        "runtime": "onnxruntime",
        "status": "READY",
        "batchSize": service.limits.batch,
        "steps": model.description.steps,
        "labels": list(model.description.labels) or None,
        "preprocessing": form.to_json() if form else None,
    }


def _no_pictures(name: str, model: LoadedModel) -> str:
    if model.description.preprocessing is None:
        why = "its model.json does not say how pictures become its input (`dtj export --range` does)"
    else:
        why = "its output is not one of a classifier"
    return f"the model {name} takes no pictures, because {why}; /v2/models/{name}/infer takes tensors"
