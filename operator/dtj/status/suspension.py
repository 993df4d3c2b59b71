"""A job that is suspended: its pods end, their checkpoints in the bucket, and nothing is made until it is resumed.

As a Kubernetes Job's: `startTime` is cleared, so that the time of the suspension does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtj.api.status import ConditionType, Phase
from dtj.status.draft import Draft, Evaluation
from dtj.status.observed import Expected
from dtj.status.pods import PodView
from dtj.status.reports import replica_statuses

SUSPENDING, SUSPENDED = "Suspending", "JobSuspended"
"""Reasons of the condition Running: while pods end, and when all have."""
_WHY = "runPolicy.suspend is true"


def suspended(draft: Draft, expected: Expected, pods: Sequence[PodView]) -> Evaluation:
    """End the pods, then say that the job is suspended. It goes on in an attempt of its own, which counts as no
    restart.

    pods: all that there are, of whichever attempt.
    """
    old = draft.job.status
    running = old.condition(ConditionType.RUNNING)
    begun = running is not None and running.reason in (SUSPENDING, SUSPENDED)
    if pods and not begun:
        # Stored first: pods of an attempt before are deleted, and none of them is a loss.
        attempt = max(old.attempt, 1) + 1
        draft.values |= {"attempt": attempt, "all_running_time": None}
        if expected.restarts_with is not None:
            draft.values["replica_attempts"] = {
                name.removeprefix(f"{draft.job.name}-"): attempt for name in sorted(expected.attempts)
            }
    draft.values["replica_statuses"] = replica_statuses(expected, [])
    draft.set(ConditionType.RESTARTING, False, SUSPENDED, _WHY)
    if pods:
        names = ", ".join(sorted(pod.name for pod in pods))
        draft.set(
            ConditionType.RUNNING,
            False,
            SUSPENDING,
            f"{_WHY}: waits until {names} ended: checkpoints are uploaded first",
        )
        return Evaluation(draft.status(), look_again=None if begun else 0.0, hold=True)
    draft.set(ConditionType.RUNNING, False, SUSPENDED, _WHY)
    draft.set(ConditionType.SUSPENDED, True, SUSPENDED, _WHY)
    return Evaluation(draft.status(phase=Phase.SUSPENDED, start_time=None, all_running_time=None), hold=True)


def resumed(draft: Draft) -> None:
    """The job goes on, if it was suspended."""
    draft.set(ConditionType.SUSPENDED, False, "JobResumed", "runPolicy.suspend is false")
