"""A job that is suspended: its pods end, their checkpoints in the bucket, and nothing is made until it is resumed.

As a Kubernetes Job's: `startTime` is cleared, so that the time of the suspension does not count. An administrator, or
Kueue itself, suspends a job by deactivating its Workload (`spec.active: false`): a new group of pods would be a new
Workload, which is active, so none is made until the user acts.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtj.api.condition_types import ConditionType
from dtj.api.reasons import Reason
from dtj.api.status import ConditionStatus, JobStatus, Phase
from dtj.api.unreadable import AnyJob
from dtj.status.decision import Decision, Pods
from dtj.status.draft import Draft
from dtj.status.failure import attempt_loss
from dtj.status.next_attempt import in_attempt, next_attempt
from dtj.status.observed import Expected
from dtj.status.overdue import describe_ending
from dtj.status.pods import PodView

# How Kueue's reason begins: of version 0.19, and before 0.10.
_DEACTIVATIONS = ("WorkloadEvictedDueToDeactivated", "WorkloadEvictedDueToInactiveWorkload")


def is_suspending(status: JobStatus) -> bool:
    """Return whether the deletion of the pods has begun. All pods then end, even if the job is resumed meanwhile."""
    return _running_reason(status) in (Reason.SUSPENDING, Reason.WORKLOAD_DEACTIVATED)


def deactivation(expected: Expected, pods: Sequence[PodView]) -> PodView | None:
    """A pod that Kueue evicts because its Workload was deactivated; None: there is none that the training needs."""
    needed = (pod for pod in pods if pod.name in expected.needed)
    return next((pod for pod in needed if pod.reason.startswith(_DEACTIVATIONS)), None)


def is_deactivated(status: JobStatus) -> bool:
    """Whether the job is suspended because its Workload was deactivated."""
    suspended = status.condition(ConditionType.SUSPENDED)
    return (
        suspended is not None
        and suspended.status is ConditionStatus.TRUE
        and suspended.reason == Reason.WORKLOAD_DEACTIVATED
    )


def is_held(job: AnyJob) -> bool:
    """Whether the job stays suspended because its Workload was deactivated: until its spec is changed, as by a user
    who suspends and resumes it.
    """
    suspended = job.status.condition(ConditionType.SUSPENDED)
    return (
        suspended is not None
        and is_deactivated(job.status)
        and suspended.observed_generation == job.generation
    )


def held(draft: Draft) -> Decision:
    """The job stays suspended, as its conditions already say."""
    return Decision(draft.status(start_time=None))


def suspended(
    draft: Draft, expected: Expected, pods: Sequence[PodView], evicted: PodView | None = None
) -> Decision:
    """End the pods, then say that the job is suspended. It goes on in an attempt of its own, which counts as no
    restart.

    pods: all that there are, of whichever attempt. evicted: a pod whose Workload was deactivated.
    """
    suspend, old = draft.job.run_policy.suspend, draft.job.status
    attempt, reason = old.current_attempt, _running_reason(old)
    deactivated = not suspend and (
        reason == Reason.WORKLOAD_DEACTIVATED or (evicted is not None and reason != Reason.SUSPENDING)
    )
    if deactivated and reason != Reason.WORKLOAD_DEACTIVATED and evicted is not None:
        loss = attempt_loss(attempt, [evicted], ())
        draft.failure = loss.failure if loss else None
    why = _deactivated(draft) if deactivated else "suspended by runPolicy.suspend"
    after = Reason.WORKLOAD_DEACTIVATED if deactivated else Reason.JOB_SUSPENDED
    draft.set(ConditionType.RESTARTING, False, after, why)
    if pods:
        names_of_pods = {pod.name for pod in pods}
        names = describe_ending(pods)
        message = f"{why}: attempt {attempt} is over when {names} ended: checkpoints are uploaded first"
        meanwhile = Reason.WORKLOAD_DEACTIVATED if deactivated else Reason.SUSPENDING
        draft.set(ConditionType.RUNNING, False, meanwhile, message)
        # Delete the stages in reverse order. The chief can save only while its parameter servers run.
        stages = (names_of_pods.intersection(stage) for stage in reversed(expected.stages))
        return Decision(draft.status(), pods=Pods(end=frozenset(next(filter(None, stages), names_of_pods))))
    if is_suspending(old):
        attempt += 1
        next_attempt(draft, expected, pods, cause=None)
    # The message names the attempt, so that each suspension produces its own event.
    message = f"{why}; attempt {attempt} is next"
    if deactivated:
        message += (
            ": it is queued once the job is resumed (dtj resume, or runPolicy.suspend: true, then false)"
        )
    draft.set(ConditionType.RUNNING, False, Reason.JOB_SUSPENDED, message)
    draft.set(ConditionType.SUSPENDED, True, after, message)
    status = draft.status(phase=Phase.SUSPENDED, start_time=None, all_running_time=None)
    return Decision(status, look_again=None if suspend or deactivated else 0.0)


def _deactivated(draft: Draft) -> str:
    failure = draft.failure
    said = f" ({failure.message})" if failure is not None and failure.message else ""
    return f"Kueue has deactivated its Workload{said}"


def _running_reason(status: JobStatus) -> str | None:
    running = status.condition(ConditionType.RUNNING)
    return running.reason if running is not None else None


def resumed(draft: Draft, expected: Expected) -> Decision:
    """The job goes on with all its replicas, also those that it has only now, in one attempt."""
    attempt = draft.job.status.attempt
    if expected.restarts_with is not None and attempt > 1:
        draft.replica_attempts = in_attempt(draft.job, expected.attempts, attempt)
    message = f"runPolicy.suspend is false: attempt {attempt} begins"
    draft.set(ConditionType.SUSPENDED, False, Reason.JOB_RESUMED, message)
    return Decision(draft.status(phase=Phase.PENDING), look_again=0.0)
