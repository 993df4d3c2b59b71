"""The way of the frequent requests to their functions, without the framework's.

FastAPI takes longer for a request than a small network for an answer. It still has these routes: for their
description, and for all requests that are not of the plain form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request

from dtj_trainer.serving import answers, inference_protocol, predictions
from dtj_trainer.serving.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from dtj_trainer.serving.service import Service


class Route(NamedTuple):
    """A route with the models' name in its path. `path` is what metrics name it."""

    path: str
    methods: tuple[str, ...]
    answer: Callable[[Service, str, Request], Awaitable[Response]]


ROUTES = (
    Route(f"{inference_protocol.PREFIX}/models/{{name}}/infer", ("POST",), inference_protocol.inference),
    Route("/predictions/{name}", ("PUT", "POST"), predictions.prediction),
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
            response = answers.refusal(scope["path"], error)
        except Exception:
            await answers.broken(scope["path"])(scope, receive, send)
            raise  # The server logs it.
        await response(scope, receive, send)
