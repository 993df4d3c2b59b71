"""A run of a job: its metrics and records, read from wherever the job is, and its HTML page to send.

`dtj report` and the page of `dtj ui` call it. `dtj.report` makes the figures of runs, and reads no files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dtj.api.errors import DtjError, NotFound, Unusable
from dtj.api.yaml_lines import first_object
from dtj.report.run import Run, RunMetrics, read_metrics
from dtj.report.run_page import run_page
from dtj.report.utilisation import files_to_read, read_lines
from dtj.views.sentences import sentence_of
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj.api.status import JobStatus
    from dtj.views.places import Place

Read = Callable[[str], bytes]
"""A function that returns the content of a file of one run. Raises NotFound."""
Sizes = Callable[[str], Mapping[str, int]]
"""A function that returns the size in bytes of each file of one run below a folder."""
_NO_NAME = re.compile(r"[^\w. ()-]+", re.ASCII)
_UNKNOWN = "The state of the run is not known: there is no record of its end"


def run_of(place: Place, name: str, *, bare: bool = False, most: int | None = None) -> Run:
    """Return the run of a job under a name. Raises DtjError, such as NotFound for a job without metrics.

    most: the largest number of bytes of a file, other than those of utilisation, which are bounded together.
    bare: return a job without metrics, or whose bucket can't be read, as a run without rows.
    """
    from dtj.views.bucket_place import BucketPlace

    job = place.job()
    manifest, status = job.to_manifest(), job.status
    try:
        with place.artifacts() as artifacts:

            def read(key: str) -> bytes:
                return artifacts.read(key, None if key.startswith(contract.UTILISATION) else most)

            run = read_run(name, read, artifacts.sizes, job=manifest, status=status)
    except DtjError as error:
        if not bare:
            raise
        run = Run(name, [], job=manifest, status=status, labels=_labels(manifest), unread=error.message)
    if isinstance(place, BucketPlace) and place.past.end is None:
        return replace(run, state=place.note() or "")
    return run


def read_run(
    name: str,
    read: Read,
    sizes: Sizes,
    *,
    job: Mapping[str, Any] | None = None,
    status: JobStatus | None = None,
) -> Run:
    """Read a run. Raises NotFound if the run has neither metrics nor lines of utilisation."""
    stored = sizes(contract.UTILISATION)
    try:
        metrics = read_metrics(read(contract.METRICS_FILE))
    except NotFound as error:
        if not stored:
            raise NotFound(error.message, "docs/curves.md says which programs have rows") from None
        metrics = RunMetrics([], 0)  # Show the use of processors and memory, which exists without metrics.
    job = job or _job(read)
    status = status or _recorded(read)
    try:
        evaluator = read_metrics(read(contract.EVALUATOR_METRICS_FILE))
    except NotFound:
        evaluator = RunMetrics([], 0)
    left_out = metrics.left_out + evaluator.left_out
    files = files_to_read(stored)
    utilisation = [line for file in files for line in read_lines(read(file))]
    unread = len(stored) - len(files)
    return Run(name, metrics.rows, evaluator.rows, job, status, _labels(job), left_out, utilisation, unread)


def page_of(run: Run) -> str:
    """Return the HTML page of a run."""
    told = run.state or (sentence_of(run.status) if run.status else _UNKNOWN)
    return run_page(run, told, datetime.now(UTC))


def pages_of(runs: Iterable[Run]) -> dict[str, str]:
    """Return the HTML page of each run by the name of its file."""
    return {file_name(run.name): page_of(run) for run in runs}


def file_name(name: str) -> str:
    """Return the name of the file of a run's page."""
    return f"run-{_NO_NAME.sub('-', name)[:150]}.html"


def _labels(job: Mapping[str, Any] | None) -> Mapping[str, str]:
    return ((job or {}).get("metadata") or {}).get("labels") or {}


def _recorded(read: Read) -> JobStatus | None:
    """Return the recorded status of a job that has ended; None without one that can be read."""
    from dtj.client.past_job import Unreadable, read_end, recorded_uid
    from dtj_trainer.contract.history import END_FILE

    try:
        content = read(END_FILE)
        return read_end(content, recorded_uid(content)).status
    except (NotFound, Unreadable):
        return None


def _job(read: Read) -> Mapping[str, Any] | None:
    try:
        return first_object(read(contract.JOB_FILE).decode(errors="replace"), contract.JOB_FILE)
    except (NotFound, Unusable):
        return None
