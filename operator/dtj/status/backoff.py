"""The pause before a job's pods start again: none the first time, then doubling, as a Kubernetes Job's.

It starts anew once the job has trained for 10 minutes, as the kubelet's pause before a container's restart does.
"""

from __future__ import annotations

from datetime import datetime

from dtj.api.condition_types import ConditionType
from dtj.api.status import JobStatus
from dtj.status.times import seconds_since

_FIRST_SECONDS = 10.0
_LONGEST_SECONDS = 300.0
GOOD_RUN_SECONDS = 600.0


def restarts_in_a_row(status: JobStatus, now: datetime, *, counts: bool) -> int | None:
    """What the stored status is to say of it after one restart more; None: 0. counts: whether that one does."""
    before = 0 if _ran_for(status, now) >= GOOD_RUN_SECONDS else status.restarts_in_a_row or 0
    return before + counts or None


def pause(status: JobStatus) -> float:
    """Seconds before the present attempt."""
    restarts = status.restarts_in_a_row or 0
    return 0.0 if restarts <= 1 else min(_FIRST_SECONDS * 2 ** min(restarts - 2, 10), _LONGEST_SECONDS)


def pause_left(status: JobStatus, now: datetime) -> float:
    """Seconds of it that are left; 0 or less when it is over."""
    since = restarted(status)
    if since is None or not status.holds(ConditionType.RESTARTING):
        return 0.0
    return pause(status) - seconds_since(since, now)


def restarted(status: JobStatus) -> str | None:
    """When the job started again last; by the condition in a status of a version without restartTime."""
    restarting = status.condition(ConditionType.RESTARTING)
    return status.restart_time or (restarting.last_transition_time if restarting else None)


def _ran_for(status: JobStatus, now: datetime) -> float:
    """Seconds since all that is needed began to run."""
    restarting = status.condition(ConditionType.RESTARTING)
    if status.all_running_time is None or status.holds(ConditionType.RESTARTING):
        return 0.0
    ran = seconds_since(status.all_running_time, now)
    return min(ran, seconds_since(restarting.last_transition_time, now)) if restarting else ran
