"""Jobs of the past as a table, and as data for programs. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from dtj.cli.durations import brief
from dtj.cli.job_table import PHASE_STYLES
from dtj.cli.progress import UNKNOWN, figures, rate
from dtj.cli.tables import columns
from dtj.client.past_job import written

if TYPE_CHECKING:
    from dtj.client import PastJob

NO_END = "No end recorded"


def past_table(jobs: Iterable[PastJob], now: datetime, *, wide: bool = False) -> Table:
    """Return a table with one line for each job. wide: whether to show the columns of `-o wide` too."""
    more = ("UID", "TOOK", "RESTARTS", "FAILURE", "NODES", "URI") if wide else ()
    table = columns(
        "NAMESPACE", "NAME", "PHASE", "STRATEGY", "WORKERS", "PROGRESS", "EX/S", "ATTEMPT", "AGE", "ENDED", *more,
        right=("WORKERS", "PROGRESS", "EX/S", "ATTEMPT", "TOOK", "RESTARTS"),
    )  # fmt: skip
    for job in jobs:
        table.add_row(*_cells(job, now), *(_wide_cells(job) if wide else ()))
    return table


def as_data(jobs: Sequence[PastJob]) -> list[dict[str, Any]]:
    """Return the jobs as plain data. `status` has the shape of a job's status in the API."""
    return [_plain(job) for job in jobs]


def _cells(job: PastJob, now: datetime) -> list[str | Text]:
    status = job.status
    return [
        job.namespace,
        job.name,
        Text(job.phase.value, PHASE_STYLES[job.phase]) if job.phase else Text(_without_phase(job), "yellow"),
        job.strategy or UNKNOWN,
        UNKNOWN if job.workers is None else str(job.workers),
        figures(status).get("percent", UNKNOWN),
        rate(status.progress.examples_per_second if status.progress else None),
        str(status.attempt or UNKNOWN),
        brief((now - job.created).total_seconds()),
        _ended(job),
    ]


def _without_phase(job: PastJob) -> str:
    if job.present is not None:
        return UNKNOWN
    return "Unreadable" if job.fault else NO_END


def _ended(job: PastJob) -> str:
    if job.ended:
        return written(job.ended)
    if job.present is not None:
        return UNKNOWN
    if job.fault:
        return job.fault
    if job.end:
        return f"recorded {written(job.end.time)}"
    return f"last sign {written(job.last_sign)}" if job.last_sign else "no sign"


def _wide_cells(job: PastJob) -> list[str]:
    restarts, failure = job.status.restarts, job.status.failure
    nodes = sorted({pod.node for pod in job.end.pods if pod.node}) if job.end else []
    return [
        job.uid,
        UNKNOWN if job.seconds is None else brief(job.seconds),
        str(restarts.of_training) if job.phase else UNKNOWN,
        (failure.failure_class or UNKNOWN) if failure else UNKNOWN,
        ",".join(nodes) or UNKNOWN,
        job.uri,
    ]


def _plain(job: PastJob) -> dict[str, Any]:
    end = job.end
    record = end and {
        "time": written(end.time),
        "by": end.by,
        "pods": [{"name": pod.name} | ({"node": pod.node} if pod.node else {}) for pod in end.pods],
    }
    return {
        "metadata": {
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
            "creationTimestamp": written(job.created),
        },
        "uri": job.uri,
        "source": "cluster" if job.present is not None else "bucket",
        "strategy": job.strategy,
        "workers": job.workers,
        "endTime": written(job.ended) if job.ended else None,
        "lastSign": written(job.last_sign) if job.last_sign else None,
        "fault": job.fault,
        "record": record,
        "status": job.status.model_dump(by_alias=True, mode="json", exclude_unset=True),
    }
