"""Jobs, past jobs and events as tables, and past jobs as data for programs. All functions are pure.

`dtj list`, `dtj events` and `dtj status` print the tables. `dtj.views.figures` makes the texts of the cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from dtj.api.identity import KIND, SHORT_NAME
from dtj.api.status import JobStatus, Phase, ProgressStatus
from dtj.cli.terminal import columns
from dtj.client.past_job import written
from dtj.status.state import shown_state
from dtj.status.times import seconds_since
from dtj.views.figures import UNKNOWN, brief, figures, rate, rate_with_unit

if TYPE_CHECKING:
    from dtj.client import DistributedTrainingJob, JobEvent, PastJob


PHASE_STYLES = {
    Phase.PENDING: "yellow",
    Phase.STARTING: "yellow",
    Phase.RUNNING: "cyan",
    Phase.RESTARTING: "magenta",
    Phase.SUSPENDED: "blue",
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "red",
}
COLUMNS = ("NAME", "STATE", "PROGRESS", "EX/S", "GPUS", "AGE")
WIDE_COLUMNS = ("STRATEGY", "WORKERS", "ATTEMPT", "APP-RESTARTS", "IN-PLACE", "INFRA-RESTARTS", "REASON")
"""The columns that `-o wide` adds. `kubectl get -o wide` shows the same columns."""
NUMBERS = ("PROGRESS", "EX/S", "GPUS", "WORKERS", "ATTEMPT", "APP-RESTARTS", "IN-PLACE", "INFRA-RESTARTS")


def job_table(
    jobs: Sequence[DistributedTrainingJob], now: datetime, *, namespaces: bool = False, wide: bool = False
) -> Table:
    """Return a table with one line for each job. namespaces, wide: whether to show the columns of -A and -o wide."""
    first, last = ("NAMESPACE",) if namespaces else (), WIDE_COLUMNS if wide else ()
    table = columns(*first, *COLUMNS, *last, right=NUMBERS)
    for job in jobs:
        worker = job.spec.replica_specs.worker
        more = wide_cells(job.status, job.spec.strategy, worker.replicas if worker else None) if wide else []
        cells: list[str | Text] = [job.name, state_text(job), *figure_cells(job.status), age(job, now)]
        table.add_row(*([job.namespace] if namespaces else []), *cells, *more)
    return table


def figure_cells(status: JobStatus) -> list[str]:
    """Return the cells of PROGRESS, EX/S and GPUS."""
    return [
        figures(status).get("percent", UNKNOWN),
        _rate(status.progress) if status.progress else UNKNOWN,
        UNKNOWN if status.gpus is None else str(status.gpus),
    ]


def wide_cells(
    status: JobStatus, strategy: str | None, workers: int | None, reason: str | None = None
) -> list[str]:
    """Return the cells of WIDE_COLUMNS. reason: the REASON of a job whose status has no state."""
    restarts = status.restarts
    return [
        strategy or UNKNOWN,
        UNKNOWN if workers is None else str(workers),
        str(status.attempt or UNKNOWN),
        str(restarts.application) if status.phase else UNKNOWN,
        UNKNOWN if restarts.in_place is None else str(restarts.in_place),
        str(restarts.infrastructure) if status.phase else UNKNOWN,
        shown_state(status)[1] or reason or UNKNOWN,
    ]


def event_table(events: Sequence[JobEvent], now: datetime) -> Table:
    """Return a table with one line for each event. Warnings are yellow."""
    table = columns("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
    for event in events:
        age = brief((now - event.time).total_seconds()) if event.time else UNKNOWN
        times = f" (x{event.count})" if event.count > 1 else ""
        style = "yellow" if event.type == "Warning" else ""
        table.add_row(
            f"{age}{times}", Text(event.type, style), event.reason, _short(event.object), event.message
        )
    return table


def _short(object_: str) -> str:
    """Return the object of an event, with the short name of its kind for a job."""
    return object_.replace(f"{KIND}/", f"{SHORT_NAME}/")


def state_text(job: DistributedTrainingJob) -> Text:
    """Return the state of a job in its colour. A job has no state before the operator sees the job."""
    if job.metadata.deletion_timestamp:
        return Text("Deleting", "yellow")
    return state_of_status(job.status) or Text(UNKNOWN)


def state_of_status(status: JobStatus) -> Text | None:
    """Return the state in the colour of its phase, or in yellow for a problem of a job that may still succeed."""
    state, phase = shown_state(status)[0], status.phase
    if state is None:
        return None
    if phase is None or (state != phase and phase is not Phase.FAILED):
        return Text(state, "yellow")
    return Text(state, PHASE_STYLES[phase])


def age(job: DistributedTrainingJob, now: datetime) -> str:
    """Return the age of a job."""
    created = job.metadata.creation_timestamp or job.status.start_time
    return brief(seconds_since(created, now)) if created else UNKNOWN


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


def _rate(progress: ProgressStatus) -> str:
    """Return the rate for the column EX/S: examples per second, or steps with their unit; UNKNOWN without a rate."""
    if progress.examples_per_second is not None:
        return rate(progress.examples_per_second)
    return rate_with_unit(progress) or UNKNOWN
