"""The server's application: routes, errors, metrics and access."""

from __future__ import annotations

import hmac
import time
from http import HTTPStatus
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from dtj_trainer.contract import distribution
from dtj_trainer.serving import inference_protocol, page, torchserve
from dtj_trainer.serving.errors import Refused
from dtj_trainer.serving.inference_protocol import PREFIX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from dtj_trainer.serving.service import Service


# These functions make the answers to refused requests, in the form of the protocol that the path belongs to.


def refusal(path: str, error: Refused) -> JSONResponse:
    """Return the answer to a refused request."""
    kind = "ModelNotFoundException" if error.reason == "name" else None
    return failure(path, error.status, error.message, error.headers, kind)


def broken(path: str) -> JSONResponse:
    """Return the answer to a request at which the server failed."""
    return failure(path, 500, "internal error: see the log of dtj serve for the reason")


def failure(
    path: str, status: int, message: str, headers: dict[str, str] | None = None, kind: str | None = None
) -> JSONResponse:
    """Return an answer with an error: `error` below /v2, and TorchServe's `code`, `type` and `message` elsewhere.

    `kind`: the type; None for the one that follows from the status.
    """
    if path == PREFIX or path.startswith(f"{PREFIX}/"):
        return JSONResponse({"error": message}, status, headers)
    phrase = "ResourceNotFound" if status == HTTPStatus.NOT_FOUND else HTTPStatus(status).phrase.title()
    kind = kind or f"{phrase.replace(' ', '')}Exception"
    return JSONResponse({"code": status, "type": kind, "message": message}, status, headers)


# Two layers around every request: Token checks its bearer token, and Measured counts it.

OPEN = frozenset({"/ping", "/v2/health/live", "/v2/health/ready", *page.FILES})
"""Paths that need no token: those of probes, and the files of the page, which asks for the token itself."""


class Token:
    """Refuses requests without the bearer token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and scope["path"] not in OPEN and not self._has(scope):
            error = Refused(
                HTTPStatus.UNAUTHORIZED,
                "token",
                "the request needs the header `Authorization: Bearer TOKEN` with the server's token",
                {"WWW-Authenticate": "Bearer"},
            )
            await refusal(scope["path"], error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._wanted)


class Measured:
    """Counts requests, and measures their time."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = int(HTTPStatus.INTERNAL_SERVER_ERROR)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            name = scope.get("path_params", {}).get("name", "")
            route = getattr(scope.get("route"), "path", "other")
            self._service.metrics.answered(
                name if name in self._service.slots else "", route, status, time.perf_counter() - began
            )


# Direct passes frequent requests to their functions without FastAPI.
#
# FastAPI takes longer for a request than a small neural network for its answer. FastAPI still has these routes, for
# their description in OpenAPI, and for requests with a query or a version.


class Route(NamedTuple):
    """A route with a model's name in its path. `path` is also the label `route` of the metrics."""

    path: str
    methods: tuple[str, ...]
    answer: Callable[[Service, str, Request], Awaitable[Response]]


ROUTES = (
    Route(f"{inference_protocol.PREFIX}/models/{{name}}/infer", ("POST",), inference_protocol.inference),
    Route("/predictions/{name}", ("PUT", "POST"), torchserve.prediction),
)


class Direct:
    """Answers requests of `ROUTES` for the server's models without a query; gives all others to `app`."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._routes = {
            (method, route.path.format(name=name)): (route, name)
            for route in ROUTES
            for method in route.methods
            for name in service.slots
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        found = None
        if scope["type"] == "http" and not scope["query_string"]:
            found = self._routes.get((scope["method"], scope["path"]))
        if found is None:
            await self._app(scope, receive, send)
            return
        route, name = found
        scope["route"], scope["path_params"] = route, {"name": name}
        try:
            response = await route.answer(self._service, name, Request(scope, receive))
        except Refused as error:
            self._service.metrics.refused(error.reason)
            response = refusal(scope["path"], error)
        except Exception:
            await broken(scope["path"])(scope, receive, send)
            raise  # uvicorn logs the error.
        await response(scope, receive, send)


def application(service: Service, token: str | None) -> ASGIApp:
    """Return the application. With a token, requests need the token; see OPEN for exceptions."""
    version = _version()
    app = FastAPI(
        title="dtj serve",
        version=version,
        description="Trained models over HTTP: TorchServe's routes, and the Open Inference Protocol.",
        docs_url=None,  # FastAPI's pages for the documentation load scripts from other servers.
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.include_router(torchserve.router(service))
    app.include_router(inference_protocol.router(service, version))
    app.include_router(page.router(service))

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
        return refusal(request.url.path, error)

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers or {})
        message = f"{request.method} {request.url.path[:200]}: {error.detail}"
        return failure(request.url.path, error.status_code, message, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        message = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        return failure(request.url.path, 400, message)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        del error  # uvicorn logs the error.
        return broken(request.url.path)

    measured = Measured(Direct(app, service), service)
    return Token(measured, token) if token else measured


def _version() -> str:
    try:
        return distribution.version()
    except metadata.PackageNotFoundError:  # The package is on the path without being installed.
        return "unknown"
