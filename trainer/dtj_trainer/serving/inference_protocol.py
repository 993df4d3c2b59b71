"""The routes of the Open Inference Protocol, version 2, which KServe and Triton also have.

https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from dtj_trainer.serving import tensors
from dtj_trainer.serving.refusal import Refused
from dtj_trainer.serving.service import input_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dtj_trainer.serving.loaded_model import Tensor
    from dtj_trainer.serving.service import Service

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
            tensors.read_inference,
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
        content, length = tensors.written(asked, name, model.version, model.outputs, found)
    except ValueError as error:
        message = "the model's answer is not finite, which JSON has no form for: ask for binary data"
        raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "model", message) from error
    if length is None:
        return Response(content, media_type="application/json")
    return Response(content, media_type="application/octet-stream", headers={LENGTH: str(length)})


def _listed(found: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [{"name": each.name, "datatype": each.datatype, "shape": [-1, *each.shape]} for each in found]
