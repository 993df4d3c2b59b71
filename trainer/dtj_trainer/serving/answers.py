"""Answers to requests that are refused, in the form of the protocol that the path belongs to."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi.responses import JSONResponse

from dtj_trainer.serving.inference_protocol import PREFIX

if TYPE_CHECKING:
    from dtj_trainer.serving.refusal import Refused


def refusal(path: str, error: Refused) -> JSONResponse:
    """Return the answer to a refused request."""
    kind = "ModelNotFoundException" if error.reason == "name" else None
    return failure(path, error.status, error.message, error.headers, kind)


def broken(path: str) -> JSONResponse:
    """Return the answer to a request at which the server failed."""
    return failure(path, 500, "the server failed; its log says why")


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
