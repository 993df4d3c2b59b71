"""A job that is suspended: its pods end, their checkpoints in the bucket, and nothing is made until it is resumed.

As a Kubernetes Job's: `startTime` is cleared, so that the time of the suspension does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtj.api.status import ConditionType, JobStatus, Phase
from dtj.status.again import in_attempt
from dtj.status.draft import Draft, Evaluation
from dtj.status.observed import Expected
from dtj.status.overdue import told_ending
from dtj.status.pods import PodView

SUSPENDING, SUSPENDED = "Suspending", "JobSuspended"
"""Reasons of the condition Running: while pods end, and when all have."""
_WHY = "suspended by runPolicy.suspend"


def is_suspending(status: JobStatus) -> bool:
    """Whether its pods were told to end: then all of them do, also when it is resumed meanwhile."""
    running = status.condition(ConditionType.RUNNING)
    return running is not None and running.reason == SUSPENDING


def suspended(draft: Draft, expected: Expected, pods: Sequence[PodView]) -> Evaluation:
    """End the pods, then say that the job is suspended. It goes on in an attempt of its own, which counts as no
    restart.

    pods: all that there are, of whichever attempt.
    """
    draft.set(ConditionType.RESTARTING, False, SUSPENDED, _WHY)
    attempt = max(draft.job.status.attempt, 1)
    if pods:
        there = {pod.name for pod in pods}
        names = told_ending(pods)
        message = f"{_WHY}: attempt {attempt} is over when {names} ended: checkpoints are uploaded first"
        draft.set(ConditionType.RUNNING, False, SUSPENDING, message)
        # In the reverse order of their making: the chief can save only while its parameter servers are there.
        stages = (there.intersection(stage) for stage in reversed(expected.stages))
        return Evaluation(draft.status(), hold=True, end=frozenset(next(filter(None, stages), there)))
    attempt += is_suspending(draft.job.status)
    draft.values["attempt"] = attempt
    # With its attempt: an event is told once, and each suspension has its own.
    message = f"{_WHY}; attempt {attempt} is next"
    draft.set(ConditionType.RUNNING, False, SUSPENDED, message)
    draft.set(ConditionType.SUSPENDED, True, SUSPENDED, message)
    status = draft.status(phase=Phase.SUSPENDED, start_time=None, all_running_time=None)
    return Evaluation(status, look_again=None if draft.job.spec.run_policy.suspend else 0.0, hold=True)


def resumed(draft: Draft, expected: Expected) -> Evaluation:
    """The job goes on with all its replicas, also those that it has only now, in one attempt."""
    attempt = draft.job.status.attempt
    if expected.restarts_with is not None and attempt > 1:
        draft.values["replica_attempts"] = in_attempt(draft.job, expected.attempts, attempt)
    message = f"runPolicy.suspend is false: attempt {attempt} begins"
    draft.set(ConditionType.SUSPENDED, False, "JobResumed", message)
    return Evaluation(draft.status(phase=Phase.PENDING), look_again=0.0, hold=True)
