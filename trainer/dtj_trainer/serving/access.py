"""Around every request: the token that it needs, and the metrics of its answer."""

from __future__ import annotations

import hmac
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from dtj_trainer.serving import page
from dtj_trainer.serving.answers import refusal
from dtj_trainer.serving.refusal import Refused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from dtj_trainer.serving.service import Service

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
