"""The web application of `dtj ui`: the files of the page, the REST API below /api/v1, and the checks of each request.

`__main__` serves the application. The routes are in `jobs`, `artifacts`, `ranks` and `reports`.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from dtj.api.errors import DtjError, NotFound, TimedOut, Unreachable, Unusable
from dtj.ui import artifacts, jobs, ranks, reports
from dtj_trainer.contract.distribution import version
from dtj_trainer.contract.web_page import page_headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from dtj.ui.sources import JobSources


API = "/api/"
MOST_BODY_BYTES = 8 << 20
"""The limit of a request. The largest request is a job file of 1 MiB; JSON may write each character as six."""
_TOO_LARGE = f"the request is larger than {MOST_BODY_BYTES >> 20} MiB"
_HEADERS = page_headers(pictures_from=("data:",), cache="no-store")
"""Headers of every answer that does not set them itself."""


def own_hosts(port: int) -> frozenset[str]:
    """Return the values of the header Host that name this server on loopback."""
    names = {f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")}
    # A browser leaves out port 80 in the header Host.
    return frozenset(names | ({"127.0.0.1", "localhost", "[::1]"} if port == 80 else set()))


class Access:
    """Refuse requests of other pages and of programs without the token.

    A page of another site reaches a server on loopback through the browser of the user: by a name that resolves to
    127.0.0.1 (DNS rebinding, refused by the header Host) or by a cross-site request (refused by the token, which no
    cookie carries, and by the header Origin).
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str]) -> None:
        """Wrap an ASGI application. hosts: the accepted values of the header Host."""
        self._app = app
        self._wanted = f"Bearer {token}".encode()
        self._hosts = {host.encode() for host in hosts}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (n.lower().encode(), v.encode())
                        for n, v in _HEADERS.items()
                        if n.lower().encode() not in given
                    ),
                ]
            await send(message)

        refused = self._refusal(scope)
        await (refused or self._app)(scope, _limit_body_size(receive), sent)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        if _one(scope, b"host") not in self._hosts:
            return _answer(HTTPStatus.MISDIRECTED_REQUEST, "the header Host does not name this server")
        origins = _all(scope, b"origin")
        if any(origin not in self._origins for origin in origins):
            return _answer(HTTPStatus.FORBIDDEN, "the header Origin names another page than this server's")
        if not _is_small(_all(scope, b"content-length")):
            return _answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TOO_LARGE)
        if scope["path"].startswith(API) and not self._has_token(scope):
            return _answer(
                HTTPStatus.UNAUTHORIZED,
                "the request needs the header `Authorization: Bearer TOKEN`; `dtj ui` prints its address with TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )
        return None

    def _has_token(self, scope: Scope) -> bool:
        given = _one(scope, b"authorization")
        return given is not None and hmac.compare_digest(given, self._wanted)


def _limit_body_size(receive: Receive) -> Receive:
    """Return `receive`, which ends a request whose body is too large and had no Content-Length."""
    size = 0

    async def received() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MOST_BODY_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TOO_LARGE)
        return message

    return received


def _is_small(lengths: Iterable[bytes]) -> bool:
    return all(length.isdigit() and int(length[:20]) <= MOST_BODY_BYTES for length in lengths)


def _all(scope: Scope, name: bytes) -> list[bytes]:
    return [value for header, value in scope["headers"] if header == name]


def _one(scope: Scope, name: bytes) -> bytes | None:
    """Return the value of a header; None if the request has no such header, or several."""
    values = _all(scope, name)
    return values[0] if len(values) == 1 else None


def _answer(status: HTTPStatus, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"message": message}, status, headers)


_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
_STATUSES: dict[type[DtjError], HTTPStatus] = {
    Unusable: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotFound: HTTPStatus.NOT_FOUND,
    Unreachable: HTTPStatus.BAD_GATEWAY,
    TimedOut: HTTPStatus.GATEWAY_TIMEOUT,
}


def application(sources: JobSources, *, token: str, port: int) -> ASGIApp:
    """Return the application.

    token: the bearer token that requests to the API carry. port: the port of the server on loopback.
    """
    app = FastAPI(
        title="dtj ui",
        version=version(),
        description="The jobs of a cluster, of a bucket or of this machine. The page of `dtj ui` uses this API.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(jobs.read_routes(sources), prefix="/api/v1")
    app.include_router(artifacts.router(sources), prefix="/api/v1")
    app.include_router(ranks.router(sources), prefix="/api/v1")
    app.include_router(reports.router(sources), prefix="/api/v1")
    if sources.client:
        app.include_router(jobs.change_routes(sources.client), prefix="/api/v1")
    app.exception_handler(DtjError)(_explained)
    app.exception_handler(RequestValidationError)(_misused)
    app.exception_handler(HTTPException)(_refused)
    for path, (name, kind) in _FILES.items():
        _add_file(app, path, files("dtj.ui.page").joinpath(name).read_bytes(), kind)
    return Access(app, token, own_hosts(port))


def _add_file(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path, include_in_schema=False)
    async def send() -> Response:
        return Response(content, media_type=kind)


async def _explained(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, DtjError)
    status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), HTTPStatus.CONFLICT)
    return JSONResponse({"message": error.message, "remedy": error.remedy}, status)


async def _misused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return JSONResponse(
        {"message": f"{where}: {first['msg']}", "remedy": None}, HTTPStatus.UNPROCESSABLE_ENTITY
    )


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"message": error.detail, "remedy": None}, error.status_code, error.headers)
