"""The pause before the pods of a job restart. The first restart has no pause. Each later pause is twice as long.

A job that has trained for 10 minutes has no pause again, as the kubelet resets a container's restart backoff.
"""

from __future__ import annotations

from datetime import datetime

from dtj.api.condition_types import ConditionType
from dtj.api.status import JobStatus
from dtj.api.unreadable import AnyJob
from dtj.status.times import seconds_since

_FIRST_SECONDS = 10.0
_LONGEST_SECONDS = 300.0
_LOST_AGAIN_SECONDS = 60.0
GOOD_RUN_SECONDS = 600.0
"""Seconds of training after which the next restart counts as the first."""


def restarts_in_a_row(status: JobStatus, now: datetime, *, counts: bool) -> int | None:
    """Return the value of `restartsInARow` after one more restart; None stands for 0.

    counts: whether the new restart counts.
    """
    before = 0 if _ran_for(status, now) >= GOOD_RUN_SECONDS else status.restarts_in_a_row or 0
    return before + counts or None


def is_lost_again(job: AnyJob, pod: str, now: datetime) -> bool:
    """Return whether a replica that was restarted alone is lost within a minute after the last pause.

    A kubelet whose device plugin is broken, for example, refuses each pod at once.
    """
    status, since = job.status, restarted(job.status)
    if since is None or pod.removeprefix(f"{job.name}-") not in (status.replica_attempts or {}):
        return False
    return seconds_since(since, now) - pause(status) < _LOST_AGAIN_SECONDS


def pause(status: JobStatus) -> float:
    """Return the seconds of the pause before the present attempt starts."""
    restarts = status.restarts_in_a_row or 0
    return 0.0 if restarts <= 1 else min(_FIRST_SECONDS * 2 ** min(restarts - 2, 10), _LONGEST_SECONDS)


def pause_left(status: JobStatus, now: datetime) -> float:
    """Return the remaining seconds of the pause; 0 or less when the pause is over."""
    since = restarted(status)
    if since is None or not status.holds(ConditionType.RESTARTING):
        return 0.0
    return pause(status) - seconds_since(since, now)


def restarted(status: JobStatus) -> str | None:
    """Return when the job last restarted.

    An older operator version did not store restartTime. For such a status, read the time from the condition.
    """
    restarting = status.condition(ConditionType.RESTARTING)
    return status.restart_time or (restarting.last_transition_time if restarting else None)


def _ran_for(status: JobStatus, now: datetime) -> float:
    """Return the seconds since all needed pods began to run."""
    restarting = status.condition(ConditionType.RESTARTING)
    if status.all_running_time is None or status.holds(ConditionType.RESTARTING):
        return 0.0
    ran = seconds_since(status.all_running_time, now)
    return min(ran, seconds_since(restarting.last_transition_time, now)) if restarting else ran
