"""Routes of reports: jobs compared by `dtj report`, and a job as one HTML file."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dtj.api.errors import Unusable
from dtj.cli.report_sources import run_of
from dtj.cli.run_pages import file_name, page_of
from dtj.report import html
from dtj.report.documents import alternative, as_html
from dtj.report.tables import tables_of
from dtj.ui.answers import Answer
from dtj.ui.comparing import MOST_JOBS, Wishes, compared, drawn, job_words
from dtj.ui.metrics_of_jobs import MOST_BYTES

if TYPE_CHECKING:
    from dtj.ui.sources import Sources

_MOST_FIELDS = 10
_LONGEST = 300
_FILE = {
    # The file has no script. Where a browser shows it nevertheless at this server's address, it may do nothing.
    "Content-Security-Policy": f"sandbox; {html.POLICY}",
    "X-Content-Type-Options": "nosniff",
}

Jobs = Annotated[
    list[str], Query(alias="job", max_length=MOST_JOBS, description="NAMESPACE/NAME, or NAMESPACE/NAME/UID.")
]
Baseline = Annotated[
    str, Query(max_length=_LONGEST, description="Run or group to compare with, or FIELD=VALUE.")
]
GroupBy = Annotated[
    tuple[str, ...], Query(max_length=_MOST_FIELDS, description="Fields, as for `dtj report`.")
]
Price = Annotated[str, Query(max_length=_LONGEST, description="Of pods per hour, as for `dtj report`.")]


class ReportTable(Answer):
    """A table of `dtj report`. The first cell of a row is the name of the row."""

    title: str
    headings: list[str]
    rows: list[list[str]]


class ReportPicture(Answer):
    """A picture of `dtj report`."""

    name: str
    """Of its file."""
    alternative: str
    """What it shows, in words."""
    png: str
    """Its content in base64."""


class LeftOut(Answer):
    """A job that is not in the report."""

    job: str
    reason: str


class ReportAnswer(Answer):
    """What `dtj report` says of jobs."""

    tables: list[ReportTable]
    notes: list[str]
    pictures: list[ReportPicture]
    no_pictures: str | None
    """Why there are no pictures, and what helps."""
    left_out: list[LeftOut]
    baselines: list[str]
    """The runs and groups with which the others can be compared."""
    command: str
    """What makes the same report in a shell."""


class PastOptions(Answer):
    """The options of the program's command line of a past job."""

    uid: str
    arguments: dict[str, str]


def router(sources: Sources) -> APIRouter:
    """Return the routes. Each runs in a thread, for the client blocks."""
    routes = APIRouter(tags=["Reports"])

    @routes.get("/report")
    def report(
        jobs: Jobs, group_by: GroupBy = (), baseline: Baseline = "", price: Price = ""
    ) -> ReportAnswer:
        """Compare jobs as `dtj report` does. Jobs without metrics are left out."""
        found = compared(sources, job_words(jobs), Wishes(baseline, group_by, price))
        entries = [*found.report.runs, *found.report.groups]
        pictures, no_pictures = {}, None
        try:
            pictures = drawn(found.report) if found.report.runs else {}
        except Unusable as error:
            no_pictures = f"{error.message}: {error.remedy}"
        return ReportAnswer(
            tables=[
                ReportTable(title=each.title, headings=[*each.headings], rows=[[*row] for row in each.rows])
                for each in tables_of(found.report)
                if each.rows
            ],
            notes=[*found.report.notes],
            pictures=[
                ReportPicture(
                    name=name, alternative=alternative(name), png=base64.b64encode(content).decode()
                )
                for name, content in pictures.items()
            ],
            no_pictures=no_pictures,
            left_out=[LeftOut(job=job, reason=reason) for job, reason in found.left_out.items()],
            baselines=[entry.label for entry in entries],
            command=found.command,
        )

    @routes.get("/report.html", response_class=HTMLResponse)
    def report_file(
        jobs: Jobs, group_by: GroupBy = (), baseline: Baseline = "", price: Price = ""
    ) -> HTMLResponse:
        """Send the report of jobs as one HTML file."""
        found = compared(sources, job_words(jobs), Wishes(baseline, group_by, price))
        return _sent(as_html(found.report, drawn(found.report)), "report.html")

    @routes.get("/jobs/{namespace}/{name}/page.html", response_class=HTMLResponse)
    def page(namespace: str, name: str, uid: str = "") -> HTMLResponse:
        """Send a job as one HTML file, as `dtj report NAME --format page` writes it."""
        run = run_of(sources.find(namespace, name, uid), name, bare=True, most=MOST_BYTES)
        return _sent(page_of(run), file_name(name))

    @routes.get("/past/options")
    def past_options(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[PastOptions]:
        """Return the options of the command lines of the newest jobs of the history, from their job.yaml."""
        found = sources.past_options(limit)
        return [PastOptions(uid=uid, arguments=options) for uid, options in found.items()]

    return routes


def _sent(content: str, name: str) -> HTMLResponse:
    return HTMLResponse(
        content, headers={**_FILE, "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}"}
    )
