"""Routes that read the bucket of a job: its curves and its files."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from dtj.ui.answers import Artifact
from dtj.ui.curves import Curves, curves_of
from dtj.ui.metrics_of_jobs import metrics_of

if TYPE_CHECKING:
    from dtj.ui.sources import Sources

_DOWNLOAD = {
    # What a program left in the bucket may be a page that runs scripts.
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}


def router(sources: Sources) -> APIRouter:
    """Return the routes. Each runs in a thread, for the client blocks."""
    routes = APIRouter(tags=["Artifacts"])

    @routes.get("/jobs/{namespace}/{name}/curves")
    def curves(namespace: str, name: str, uid: str = "") -> Curves:
        """Return the metrics of a job over its steps; none before the program has reported."""
        with sources.find(namespace, name, uid).artifacts() as found, metrics_of(found) as metrics:
            return curves_of(metrics.rows, metrics.left_out)

    @routes.get("/jobs/{namespace}/{name}/artifacts")
    def artifacts(namespace: str, name: str, uid: str = "") -> list[Artifact]:
        """List the files of a job, the segments of a growing file as one."""
        with sources.find(namespace, name, uid).artifacts() as found:
            sizes = found.sizes()
        return [Artifact(key=key, size=size) for key, size in sorted(sizes.items())]

    @routes.get("/jobs/{namespace}/{name}/artifacts/{key:path}", response_class=StreamingResponse)
    def download(namespace: str, name: str, key: str, uid: str = "") -> StreamingResponse:
        """Send a file of a job as an attachment."""
        with sources.find(namespace, name, uid).artifacts() as found:
            content = found.stream(key)
        name_of_file = quote(PurePosixPath(key).name)
        return StreamingResponse(
            content,
            media_type="application/octet-stream",
            headers={**_DOWNLOAD, "Content-Disposition": f"attachment; filename*=UTF-8''{name_of_file}"},
        )

    return routes
