"""Routes that read the bucket of a job: its curves and its files, and its metrics file in bounded memory.

`reports` and `ranks` read the metrics file with the same limit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from dtj.api.errors import NotFound
from dtj.report import curves
from dtj.report.run import MetricsRow, RunMetrics, read_metrics
from dtj.ui.answers import ApiAnswer, Artifact
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj.client import Artifacts
    from dtj.ui.sources import JobSources


class Curve(ApiAnswer):
    """One measure over steps."""

    name: str
    """The kind of the rows and the name of the number in them, such as `train loss`."""
    steps: list[int]
    values: list[float]
    times: list[float]
    """Seconds since 1970 of each point."""


class CurvesAnswer(ApiAnswer):
    """The curves of a run."""

    curves: list[Curve]
    restarts: list[int]
    """The first step of each attempt after the first."""
    epochs: list[tuple[int, float]]
    """Steps and their epochs, by step, where the rows have epochs."""
    started: float | None
    """Seconds since 1970 of the first report."""
    left_out: int
    """The number of unreadable lines in the metrics file."""


def curves_of(rows: Sequence[MetricsRow], left_out: int) -> CurvesAnswer:
    """Return the curves of the numbers that the rows have, the training's first."""
    return CurvesAnswer(
        curves=[
            Curve(
                name=curve.name,
                steps=[step for step, _, _ in curve.points],
                values=[value for _, value, _ in curve.points],
                times=[time for _, _, time in curve.points],
            )
            for curve in curves.curves_of(rows)
        ],
        restarts=curves.restarts_of(rows),
        epochs=_epochs(rows),
        started=rows[0].time if rows else None,
        left_out=left_out,
    )


def _epochs(rows: Sequence[MetricsRow]) -> list[tuple[int, float]]:
    """Return the first step of each epoch, and the last step that has one; thinned for a screen."""
    by_step = {row.step: epoch for row in rows if (epoch := row.number("epoch")) is not None}
    steps = sorted(by_step)
    turns = [
        (step, by_step[step])
        for place, step in enumerate(steps)
        if place in (0, len(steps) - 1) or by_step[steps[place - 1]] != by_step[step]
    ]
    apart = -(-len(turns) // curves.MOST_POINTS)
    return turns[:: max(1, apart)]


MOST_BYTES = 16 << 20
"""The number of bytes that are read at the end of the file. A row has about 150 bytes in the file, 600 in memory."""
LONGEST_LINE = 64 << 10
"""The limit of a row in bytes. Objects in memory can be twenty times as large as their JSON."""
_turn = threading.Lock()
"""Keeps one file in memory at a time. Threads of Python would not read two files faster."""


@contextmanager
def metrics_of(artifacts: Artifacts) -> Iterator[RunMetrics]:
    """Yield the rows of a job's metrics file; none before the program has reported.

    Of a large file, these are the last rows. Longer lines than LONGEST_LINE count as left out.
    """
    with _turn:
        try:
            content, whole = artifacts.end_of(contract.METRICS_FILE, MOST_BYTES)
        except NotFound:
            yield RunMetrics([], 0)
            return
        lines = content.split(b"\n")
        if not whole:
            del lines[0]  # The first line is incomplete: only the end of the file was read.
        short = [line for line in lines if len(line) <= LONGEST_LINE]
        metrics = read_metrics(b"\n".join(short))
        yield metrics._replace(left_out=metrics.left_out + len(lines) - len(short))


_DOWNLOAD = {
    # The program may have written a web page with scripts into the bucket. The browser must not run them.
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}


def router(sources: JobSources) -> APIRouter:
    """Return the routes. Each one runs in a thread, because the client blocks."""
    routes = APIRouter(tags=["Artifacts"])

    @routes.get("/jobs/{namespace}/{name}/curves")
    def curves(namespace: str, name: str, uid: str = "") -> CurvesAnswer:
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
