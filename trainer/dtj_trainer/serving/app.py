"""The server's application: routes, errors, metrics and access."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from dtj_trainer.contract import distribution
from dtj_trainer.serving import answers, inference_protocol, predictions
from dtj_trainer.serving.access import Measured, Token
from dtj_trainer.serving.direct import Direct
from dtj_trainer.serving.page import routes as page_routes
from dtj_trainer.serving.refusal import Refused

if TYPE_CHECKING:
    from fastapi.responses import JSONResponse
    from starlette.types import ASGIApp

    from dtj_trainer.serving.service import Service


def application(service: Service, token: str | None) -> ASGIApp:
    """Return the application; with a token, only its owners may use it."""
    version = _version()
    app = FastAPI(
        title="dtj serve",
        version=version,
        description="Trained models over HTTP: TorchServe's routes, and the Open Inference Protocol.",
        docs_url=None,  # Their pages load scripts from other servers.
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.include_router(predictions.router(service))
    app.include_router(inference_protocol.router(service, version))
    app.include_router(page_routes.router(service))

    @app.get("/metrics", tags=["Prometheus"])
    async def metrics() -> Response:
        """Expose the metrics."""
        for name, slot in service.slots.items():
            service.metrics.waiting(name, slot.batcher.waiting)
        service.metrics.held(*service.room.held)
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        service.metrics.refused(error.reason)
        return answers.refusal(request.url.path, error)

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers or {})
        message = f"{request.method} {request.url.path[:200]}: {error.detail}"
        return answers.failure(request.url.path, error.status_code, message, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        message = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        return answers.failure(request.url.path, 400, message)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        del error  # The server logs it.
        return answers.broken(request.url.path)

    measured = Measured(Direct(app, service), service)
    return Token(measured, token) if token else measured


def _version() -> str:
    try:
        return distribution.version()
    except metadata.PackageNotFoundError:  # The package is on the path without being installed.
        return "unknown"
