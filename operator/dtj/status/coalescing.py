"""What of a status only says how many pods are how far."""

from __future__ import annotations

from dtj.api.condition_types import ConditionType
from dtj.api.reasons import Reason
from dtj.api.status import Condition, ConditionStatus, JobStatus, Phase

_STARTING = (Phase.PENDING, Phase.STARTING)


def only_counts(old: JobStatus, new: JobStatus) -> bool:
    """Whether `new` says nothing that `old` does not but where the pods are on their way to run, or to their end."""
    return _without_counts(old) == _without_counts(new)


def _without_counts(status: JobStatus) -> JobStatus:
    phase = Phase.PENDING if status.phase in _STARTING else status.phase
    conditions = [
        told.model_copy(update={"message": ""}) if _counts(told) else told for told in status.conditions
    ]
    return status.model_copy(update={"replica_statuses": {}, "phase": phase, "conditions": conditions})


def _counts(told: Condition) -> bool:
    waits = told.type is ConditionType.RUNNING and told.status is ConditionStatus.FALSE
    return waits and told.reason == Reason.PODS_STARTING
