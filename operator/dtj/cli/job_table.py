"""Jobs and events as tables. All functions are pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dtj.api.condition_types import OF_UPLOADS, ConditionType
from dtj.api.identity import KIND, SHORT_NAME
from dtj.api.status import Phase
from dtj.cli.durations import brief
from dtj.cli.progress import UNKNOWN, figures, rate
from dtj.cli.tables import columns
from dtj.status.times import seconds_since

if TYPE_CHECKING:
    from dtj.client import DistributedTrainingJob, JobEvent

PHASE_STYLES = {
    Phase.PENDING: "yellow",
    Phase.STARTING: "yellow",
    Phase.RUNNING: "cyan",
    Phase.RESTARTING: "magenta",
    Phase.SUSPENDED: "blue",
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "red",
}
_TROUBLES = (ConditionType.STALLED, *OF_UPLOADS)


def job_table(
    jobs: Sequence[DistributedTrainingJob], now: datetime, *, namespaces: bool = False, wide: bool = False
) -> Table:
    """Return a table with one line for each job. namespaces, wide: whether to show the columns of -A and -o wide."""
    first, last = ("NAMESPACE",) if namespaces else (), ("UID", "RESTARTS", "URI") if wide else ()
    table = columns(
        *first, "NAME", "PHASE", "STRATEGY", "WORKERS", "PROGRESS", "EX/S", "ATTEMPT", "AGE", *last,
        right=("WORKERS", "PROGRESS", "EX/S", "ATTEMPT", "RESTARTS"),
    )  # fmt: skip
    for job in jobs:
        more = _wide_cells(job) if wide else []
        table.add_row(*([job.namespace] if namespaces else []), *_cells(job, now), *more)
    return table


def _wide_cells(job: DistributedTrainingJob) -> list[str]:
    restarts = job.status.restarts
    count = restarts.of_training
    return [job.uid or UNKNOWN, str(count), job.artifacts_uri or UNKNOWN]


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


def phase_text(job: DistributedTrainingJob) -> Text:
    """Return the phase in its colour, with what a user has to know of a running job.

    A job has no phase before the operator sees the job.
    """
    phase = job.status.phase
    if job.metadata.deletion_timestamp:
        return Text("Deleting", "yellow")
    troubles = [kind.value for kind in _TROUBLES if phase is Phase.RUNNING and job.status.holds(kind)]
    if troubles:
        return Text(", ".join([Phase.RUNNING.value, *troubles]), "yellow")
    return Text(phase.value, PHASE_STYLES[phase]) if phase else Text(UNKNOWN)


def age(job: DistributedTrainingJob, now: datetime) -> str:
    """Return the age of a job."""
    created = job.metadata.creation_timestamp or job.status.start_time
    return brief(seconds_since(created, now)) if created else UNKNOWN


def _cells(job: DistributedTrainingJob, now: datetime) -> list[str | Text]:
    status = job.status
    worker = job.spec.replica_specs.worker
    return [
        job.name,
        phase_text(job),
        job.spec.strategy,
        str(worker.replicas) if worker else UNKNOWN,
        figures(status).get("percent", UNKNOWN),
        rate(status.progress.examples_per_second if status.progress else None),
        str(status.attempt or UNKNOWN),
        age(job, now),
    ]
