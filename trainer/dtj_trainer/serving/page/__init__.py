"""The page for people at `/`: its files, and a prediction with the picture that the model saw.

The files are plain, without a build step and without anything from another server. `app` adds the routes.
"""

from __future__ import annotations

import base64
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from dtj_trainer.contract.web_page import page_headers
from dtj_trainer.serving.torchserve import BODY, best, classified, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import numpy as np

    from dtj_trainer.serving.description import Preprocessing
    from dtj_trainer.serving.service import Service

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page/drawing.js": ("drawing.js", "text/javascript; charset=utf-8"),
}
"""By path: the name in this folder, and its Content-Type."""

_HEADERS = page_headers(pictures_from=("blob:", "data:"), cache="no-cache")


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
            assert form is not None, "a model without preprocessing classifies no pictures"
            held.add(4 * form.size * form.size * form.channels)  # for the PNG file and for its base64 text
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
