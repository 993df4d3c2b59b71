"""Jobs of the past as a table, and as data for programs. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from dtj.cli.durations import brief
from dtj.cli.job_table import COLUMNS, NUMBERS, WIDE_COLUMNS, figure_cells, state_of_status, wide_cells
from dtj.cli.progress import UNKNOWN
from dtj.cli.tables import columns
from dtj.client.past_job import written
from dtj.status.state import shown_state

if TYPE_CHECKING:
    from dtj.client import PastJob

NO_END = "No end recorded"


def past_table(jobs: Iterable[PastJob], now: datetime, *, wide: bool = False) -> Table:
    """Return a table with one line for each job. wide: whether to show the columns of `-o wide` too."""
    more = (*WIDE_COLUMNS[:-1], "TOOK", "NODES", "UID", "URI", WIDE_COLUMNS[-1]) if wide else ()
    table = columns("NAMESPACE", *COLUMNS, "ENDED", *more, right=(*NUMBERS, "TOOK"))
    for job in jobs:
        table.add_row(*_cells(job, now), *(_wide_cells(job) if wide else ()))
    return table


def as_data(jobs: Sequence[PastJob]) -> list[dict[str, Any]]:
    """Return the jobs as plain data. `status` has the shape of a job's status in the API."""
    return [_plain(job) for job in jobs]


def _cells(job: PastJob, now: datetime) -> list[str | Text]:
    return [
        job.namespace,
        job.name,
        state_of_status(job.status) or Text(_without_phase(job), "yellow"),
        *figure_cells(job.status),
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
    nodes = sorted({pod.node for pod in job.end.pods if pod.node}) if job.end else []
    *cells, reason = wide_cells(job.status, job.strategy, job.workers, job.state)
    took = UNKNOWN if job.seconds is None else brief(job.seconds)
    return [*cells, took, ",".join(nodes) or UNKNOWN, job.uid, job.uri, reason]


def _plain(job: PastJob) -> dict[str, Any]:
    end = job.end
    state, reason = shown_state(job.status)
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
        "state": state,
        "reason": job.state or reason,
        "endTime": written(job.ended) if job.ended else None,
        "lastSign": written(job.last_sign) if job.last_sign else None,
        "fault": job.fault,
        "record": record,
        "status": job.status.model_dump(by_alias=True, mode="json", exclude_unset=True),
    }
