"""The routes of the page: its files, and a prediction with the picture that the model saw."""

from __future__ import annotations

import base64
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from dtj_trainer.serving.page import FILES
from dtj_trainer.serving.pictures import shown
from dtj_trainer.serving.predictions import BODY, best, classified

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import numpy as np

    from dtj_trainer.serving.description import Preprocessing
    from dtj_trainer.serving.service import Service

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""What a browser lets the page do: its own files and requests to its own server."""
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def router(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(tags=["Page"])
    for path, (name, kind) in FILES.items():
        routes.get(path, include_in_schema=False)(
            _sends(files(__package__).joinpath(name).read_bytes(), kind)
        )

    @routes.post("/page/predictions/{name}", openapi_extra=BODY)
    async def look(name: str, request: Request) -> dict[str, Any]:
        """Classify a picture as `/predictions/NAME` does, and show the picture as the model got it.

        `classes` are the five likeliest, the likeliest first. `saw` is a PNG file as a `data:` URL.
        """
        with service.room.enter() as held:
            found = await classified(service, name, request, held)
            model = found.model
            form = model.description.preprocessing
            assert form is not None, "a model without it classifies no pictures"
            held.add(4 * form.size * form.size * form.channels)  # The file, and its text.
            saw = await service.decoded(None, _url, found.example, form)
            labels = model.description.labels
            return {
                "modelName": name,
                "modelVersion": model.version,
                "steps": model.description.steps,
                "preprocessing": form.to_json(),
                "classes": [
                    {"class": place, "label": labels[place] if labels else None, "probability": value}
                    for place, value in best(found.output, model)
                ],
                "saw": saw,
            }

    return routes


def _sends(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    return send


def _url(example: np.ndarray, form: Preprocessing) -> str:
    return f"data:image/png;base64,{base64.b64encode(shown(example, form)).decode()}"
