"""The state of a job, and the change of a job, in one sentence for a person. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping

from dtj.api.status import OF_UPLOADS, ConditionStatus, ConditionType, JobStatus, Phase
from dtj.views.figures import figures

_WAITING = {Phase.PENDING, Phase.STARTING, Phase.RESTARTING}
_BEGINNINGS = {
    None: "The operator has not seen the job yet",
    Phase.PENDING: "The job waits to start",
    Phase.STARTING: "The pods start",
    Phase.RUNNING: "The job trains",
    Phase.RESTARTING: "The job starts again",
    Phase.SUSPENDED: "The job is suspended",
    Phase.SUCCEEDED: "The job succeeded",
    Phase.FAILED: "The job failed",
}
_STALLED = "The job makes no progress"


def sentence_of(status: JobStatus) -> str:
    """Return one line about the job: its phase, then what matters in that phase."""
    begin = _STALLED if _stalled(status) else _BEGINNINGS[status.phase]
    if details := _details(status):
        begin += f": {details}"
    if status.restarts.of_training:
        begin += f" (after {status.restarts.in_words})"
    return begin


def suspending(name: str) -> str:
    """Say that a job is being suspended."""
    return f"{name} is being suspended: its pods save a checkpoint and end"


def resuming(name: str, checkpoint: int | None = None) -> str:
    """Say that a job is being resumed. checkpoint: its number; None for the newest one."""
    return f"{name} is being resumed" + ("" if checkpoint is None else f" from checkpoint {checkpoint}")


def scaled(name: str, replicas: Mapping[str, int]) -> str:
    """Say how many replicas of each role a job has now."""
    return f"{name} now has " + ", ".join(f"{role}={number}" for role, number in replicas.items())


def _details(status: JobStatus) -> str:
    if status.phase is Phase.FAILED or (status.phase is Phase.RESTARTING and status.failure):
        return _cause(status)
    known = figures(status)
    if status.phase is Phase.RUNNING:
        if _stalled(status):
            return _message(status, ConditionType.STALLED)
        shown = ", ".join(known[name] for name in ("step", "percent", "eta") if name in known)
        return _with_troubles(shown, status)
    if status.phase is Phase.SUCCEEDED:
        return _with_troubles(known.get("accuracy", ""), status)
    if status.phase in _WAITING:
        return next(
            (c.message for c in status.conditions if c.status is not ConditionStatus.TRUE and c.message), ""
        )
    return _message(status, ConditionType.SUSPENDED)


def _with_troubles(details: str, status: JobStatus) -> str:
    """Return the details, followed by the messages about checkpoints and files that can't be uploaded."""
    return "; ".join(
        filter(None, (details, *(_message(status, kind) for kind in OF_UPLOADS if status.holds(kind))))
    )


def _stalled(status: JobStatus) -> bool:
    return status.phase is Phase.RUNNING and status.holds(ConditionType.STALLED)


def _cause(status: JobStatus) -> str:
    failure = status.failure
    if failure is None:
        return _message(status, ConditionType.FAILED)
    return ": ".join(filter(None, (failure.source, failure.failure_class, failure.message)))


def _message(status: JobStatus, kind: ConditionType) -> str:
    return next((condition.message for condition in status.conditions if condition.type == kind), "")
