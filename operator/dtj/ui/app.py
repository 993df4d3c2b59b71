"""The web application of the page: its files, and the versioned REST API that it uses."""

from __future__ import annotations

from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from dtj.api.errors import DtjError, NotFound, TimedOut, Unreachable, Unusable
from dtj.ui import actions, files_of_jobs, jobs, ranks_of_jobs, reports
from dtj.ui.access import Access, own_hosts
from dtj_trainer.contract.distribution import version

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from dtj.ui.sources import Sources

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


def application(sources: Sources, *, token: str, port: int) -> ASGIApp:
    """Return the application.

    token: what requests to the API have to carry. port: where the server listens on loopback.
    """
    app = FastAPI(
        title="dtj ui",
        version=version(),
        description="The jobs of a cluster, of a bucket or of this machine. The page of `dtj ui` uses this API.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(jobs.router(sources), prefix="/api/v1")
    app.include_router(files_of_jobs.router(sources), prefix="/api/v1")
    app.include_router(ranks_of_jobs.router(sources), prefix="/api/v1")
    app.include_router(reports.router(sources), prefix="/api/v1")
    if sources.client:
        app.include_router(actions.router(sources.client), prefix="/api/v1")
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
