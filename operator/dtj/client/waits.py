"""What ends the wait for a condition of a job. All functions are pure."""

from __future__ import annotations

from dtj.api.condition_types import ConditionType
from dtj.api.errors import DtjError, TimedOut
from dtj.client.resource import DistributedTrainingJob


def decided(job: DistributedTrainingJob, condition: ConditionType) -> bool:
    """Return whether a condition holds for the current spec of a job, or the job has finished."""
    is_current = (job.status.observed_generation or 0) >= job.metadata.generation
    return job.status.finished or (is_current and job.status.holds(condition))


def never(job: DistributedTrainingJob, condition: ConditionType) -> DtjError:
    """Return the error for a job that finished without a condition."""
    return DtjError(f"{job.name} is {job.status.phase} and will never be {condition}")


def too_late(job: DistributedTrainingJob, timeout: float | None, what: str) -> TimedOut:
    """Return the error of a wait. timeout: in seconds. what: was waited for, e.g. `its end`."""
    return TimedOut(f"{job.name} is {job.status.phase or 'not begun'} after {timeout:g} s: waited for {what}")
