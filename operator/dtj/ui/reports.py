"""Routes of reports: jobs compared as by `dtj report`, and a job as one HTML file.

`dtj.report` makes the report, and `dtj.views.runs` reads the runs.
"""

from __future__ import annotations

import base64
import re
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dtj.api.errors import DtjError, Unusable
from dtj.api.masking import masked
from dtj.report import html
from dtj.report.cost import read_price
from dtj.report.documents import alternative, as_html
from dtj.report.pictures import pictures_of
from dtj.report.report import Report, make_report
from dtj.report.tables import tables_of
from dtj.ui.answers import ApiAnswer
from dtj.ui.artifacts import MOST_BYTES
from dtj.views.bucket_place import BucketPlace
from dtj.views.runs import file_name, page_of, run_of

if TYPE_CHECKING:
    from dtj.report.run import Run
    from dtj.ui.sources import JobSources
    from dtj.views.places import Place


MOST_JOBS = 20
_AT_ONCE = 4
"""The largest number of jobs whose metrics are read at one time."""
_WORD = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_UID = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]{0,126}[A-Za-z0-9])?", re.ASCII)
_DRAWING = threading.Lock()
"""matplotlib draws for one thread at a time."""


class JobWord(NamedTuple):
    """A job as the query of a request names it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class ReportOptions:
    """The options of `dtj report`."""

    baseline: str | None
    group_by: Sequence[str]
    price: str | None


@dataclass(frozen=True)
class Compared:
    """The report of some jobs."""

    report: Report
    left_out: Mapping[str, str]
    """The reason for which a job is not in the report, by label."""
    command: str


def job_words(words: Sequence[str]) -> list[JobWord]:
    """Read `NAMESPACE/NAME` or `NAMESPACE/NAME/UID` of each job. Raises Unusable, also for too many jobs."""
    distinct = list(dict.fromkeys(words))
    if not 1 <= len(distinct) <= MOST_JOBS:
        raise Unusable(f"{len(distinct)} jobs can't be compared", f"give 1 to {MOST_JOBS} jobs")
    return [_job_word(word) for word in distinct]


def _job_word(word: str) -> JobWord:
    namespace, slash, rest = word.partition("/")
    name, _, uid = rest.partition("/")
    fits = slash and _WORD.fullmatch(namespace) and _WORD.fullmatch(name) and (not uid or _UID.fullmatch(uid))
    if not fits:
        raise Unusable(
            f"{word[:100]!r} does not name a job", "give NAMESPACE/NAME, or NAMESPACE/NAME/UID of a past job"
        )
    return JobWord(namespace, name, uid)


def compared(sources: JobSources, jobs: Sequence[JobWord], wishes: ReportOptions) -> Compared:
    """Return the report of several jobs, without the values of options whose names look secret.

    A job whose metrics are missing or larger than MOST_BYTES is in `left_out`. Raises DtjError.
    """
    price = read_price(wishes.price) if wishes.price else None
    labels = _labels(jobs)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        places = list(pool.map(lambda job: sources.find(*job), jobs))
        found = list(pool.map(_run_or_fault, places, labels))
    runs = [each for each in found if not isinstance(each, DtjError)]
    left_out = {
        label: each.message for label, each in zip(labels, found, strict=True) if isinstance(each, DtjError)
    }
    report = make_report(runs, group_by=wishes.group_by, baseline=wishes.baseline or None, price=price)
    return Compared(report, left_out, _command(places, jobs, labels, wishes, sources.words))


def drawn(report: Report) -> dict[str, bytes]:
    """Return the pictures of a report by file name. Raises Unusable if matplotlib is not installed."""
    with _DRAWING:
        return pictures_of(report)


def _run_or_fault(place: Place, label: str) -> Run | DtjError:
    try:
        run = run_of(place, label, most=MOST_BYTES)
    except DtjError as error:
        return error
    return replace(run, job=None if run.job is None else masked(run.job))


def _labels(jobs: Sequence[JobWord]) -> list[str]:
    """Return the shortest name of each job that no other job has."""
    by_name = Counter(job.name for job in jobs)
    by_both = Counter(job[:2] for job in jobs)

    def label(job: JobWord) -> str:
        if by_name[job.name] == 1:
            return job.name
        full = f"{job.namespace}/{job.name}"
        return f"{full} ({job.uid[:8] or 'present'})" if by_both[job[:2]] > 1 else full

    return [label(job) for job in jobs]


def _command(
    places: Sequence[Place],
    jobs: Sequence[JobWord],
    labels: Sequence[str],
    wishes: ReportOptions,
    options_of: Callable[[str | None], list[str]],
) -> str:
    """Return the command of a shell. A name stands for a present job of one namespace, a prefix for every other."""
    present = [job for job, place in zip(jobs, places, strict=True) if not isinstance(place, BucketPlace)]
    namespace = present[0].namespace if present else None
    words = dict(zip(labels, _words(places, jobs, namespace), strict=True))
    baseline = words.get(wishes.baseline or "", wishes.baseline)
    if baseline and baseline.startswith("s3://"):
        baseline = baseline.rpartition("/")[2]
    options = [("--baseline", baseline), *(("--group-by", each) for each in wishes.group_by)]
    options += [("--price", wishes.price), ("--format", "html")]
    given = [word for name, value in options if value for word in (name, value)]
    return shlex.join(["dtj", "report", *words.values(), *given, *options_of(namespace)])


def _words(places: Sequence[Place], jobs: Sequence[JobWord], namespace: str | None) -> Iterator[str]:
    for place, job in zip(places, jobs, strict=True):
        if isinstance(place, BucketPlace):
            yield place.past.uri
        elif job.namespace == namespace:
            yield job.name
        else:
            yield place.job().artifacts_uri or job.name


_MOST_FIELDS = 10
_LONGEST = 300
_FILE = {
    # The file has no script. Forbid scripts anyway, in case a browser shows the file at this server's address.
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


class ReportTable(ApiAnswer):
    """A table of `dtj report`. The first cell of a row is the name of the row."""

    title: str
    headings: list[str]
    rows: list[list[str]]


class ReportPicture(ApiAnswer):
    """A picture of `dtj report`."""

    name: str
    """The name of the picture's file."""
    alternative: str
    """The picture in words."""
    png: str
    """The content of the file in base64."""


class LeftOutJob(ApiAnswer):
    """A job that is not in the report."""

    job: str
    reason: str


class ReportAnswer(ApiAnswer):
    """The report of several jobs, as `dtj report` makes it."""

    tables: list[ReportTable]
    notes: list[str]
    pictures: list[ReportPicture]
    no_pictures: str | None
    """The reason for which there are no pictures, and a remedy."""
    left_out: list[LeftOutJob]
    baselines: list[str]
    """The runs and groups with which the others can be compared."""
    command: str
    """The command of a shell that makes the same report."""


class PastOptions(ApiAnswer):
    """The options of the program's command line of a past job."""

    uid: str
    arguments: dict[str, str]


def router(sources: JobSources) -> APIRouter:
    """Return the routes. Each one runs in a thread, because the client blocks."""
    routes = APIRouter(tags=["Reports"])

    @routes.get("/report")
    def report(
        jobs: Jobs, group_by: GroupBy = (), baseline: Baseline = "", price: Price = ""
    ) -> ReportAnswer:
        """Compare jobs as `dtj report` does. Jobs without metrics are left out."""
        found = compared(sources, job_words(jobs), ReportOptions(baseline, group_by, price))
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
            left_out=[LeftOutJob(job=job, reason=reason) for job, reason in found.left_out.items()],
            baselines=[entry.label for entry in entries],
            command=found.command,
        )

    @routes.get("/report.html", response_class=HTMLResponse)
    def report_file(
        jobs: Jobs, group_by: GroupBy = (), baseline: Baseline = "", price: Price = ""
    ) -> HTMLResponse:
        """Send the report of jobs as one HTML file."""
        found = compared(sources, job_words(jobs), ReportOptions(baseline, group_by, price))
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
