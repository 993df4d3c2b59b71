"""Compare statuses without their pod counts."""

from __future__ import annotations

from dtj.api.condition_types import ConditionType
from dtj.api.reasons import Reason
from dtj.api.status import Condition, JobStatus, Phase

_STARTING = (Phase.PENDING, Phase.STARTING)


def only_counts(old: JobStatus, new: JobStatus) -> bool:
    """Return whether `new` differs from `old` only in pod counts and in what follows from the counts.

    The phase Starting counts as Pending, and the message of the reason PodsStarting counts the running pods.
    """
    return _without_counts(old) == _without_counts(new)


def _without_counts(status: JobStatus) -> JobStatus:
    phase = Phase.PENDING if status.phase in _STARTING else status.phase
    conditions = [
        condition.model_copy(update={"message": ""}) if _counts(condition) else condition
        for condition in status.conditions
    ]
    return status.model_copy(update={"replica_statuses": {}, "phase": phase, "conditions": conditions})


def _counts(condition: Condition) -> bool:
    """Return whether the message of a condition says how many pods run."""
    running = condition.type is ConditionType.RUNNING
    return running and condition.reason in (Reason.PODS_STARTING, Reason.JOB_RUNNING)
