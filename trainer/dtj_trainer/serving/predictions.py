"""The routes of TorchServe that its users type: /ping, /models, /models/NAME and /predictions/NAME."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from dtj_trainer.serving.bodies import FIELD, picture_in
from dtj_trainer.serving.pictures import example_of, is_small
from dtj_trainer.serving.refusal import Refused, bad
from dtj_trainer.serving.service import input_bytes

if TYPE_CHECKING:
    from dtj_trainer.serving.description import Preprocessing
    from dtj_trainer.serving.loaded_model import LoadedModel
    from dtj_trainer.serving.refusal import Held
    from dtj_trainer.serving.service import Service
    from dtj_trainer.serving.shelf import Slot

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
    """A picture that a model has answered. `example`: a batch of one, as the model got it. `output`: of that one."""

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
    """Return the numbers of the likeliest classes with their probabilities, falling. Raises Refused as above."""
    values = output.astype(np.float64)
    if not np.isfinite(values).all():
        raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "model", "the model's answer is not finite")
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
