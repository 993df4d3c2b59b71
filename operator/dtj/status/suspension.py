"""Suspend a job and resume it. The pods upload their checkpoints and end; a suspended job has no pods.

`startTime` is cleared as in a Kubernetes Job, so that the time of the suspension does not count. An administrator or
Kueue can also suspend a job by deactivating its Workload (`spec.active: false`). New pods would get a new, active
Workload, so the operator creates no pods until the user resumes the job.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtj.api.condition_types import ConditionType
from dtj.api.reasons import Reason
from dtj.api.status import ConditionStatus, JobStatus, Phase, ResumedFromStatus
from dtj.api.unreadable import AnyJob, UnreadableJob
from dtj.status.decision import Decision, Pods
from dtj.status.draft import Draft
from dtj.status.failure import attempt_loss
from dtj.status.next_attempt import in_attempt, next_attempt
from dtj.status.observed import Expected
from dtj.status.overdue import describe_ending
from dtj.status.pods import PodView
from dtj_trainer import contract

# Prefixes of Kueue's reason: of version 0.19, and of versions before 0.10.
_DEACTIVATIONS = ("WorkloadEvictedDueToDeactivated", "WorkloadEvictedDueToInactiveWorkload")


def is_suspending(status: JobStatus) -> bool:
    """Return whether the deletion of the pods has begun. All pods then end, even if the job is resumed meanwhile."""
    return _running_reason(status) in (Reason.SUSPENDING, Reason.WORKLOAD_DEACTIVATED)


def deactivation(expected: Expected, pods: Sequence[PodView]) -> PodView | None:
    """Return a needed pod that Kueue evicts because its Workload was deactivated; None if there is none."""
    needed = (pod for pod in pods if pod.name in expected.needed)
    return next((pod for pod in needed if pod.reason.startswith(_DEACTIVATIONS)), None)


def is_deactivated(status: JobStatus) -> bool:
    """Return whether the job is suspended because its Workload was deactivated."""
    suspended = status.condition(ConditionType.SUSPENDED)
    return (
        suspended is not None
        and suspended.status is ConditionStatus.TRUE
        and suspended.reason == Reason.WORKLOAD_DEACTIVATED
    )


def is_held(job: AnyJob) -> bool:
    """Return whether the job stays suspended because its Workload was deactivated.

    The suspension lasts until the spec changes, for example because a user suspends and resumes the job.
    """
    suspended = job.status.condition(ConditionType.SUSPENDED)
    return (
        suspended is not None
        and is_deactivated(job.status)
        and suspended.observed_generation == job.generation
    )


def held(draft: Draft) -> Decision:
    """Keep the job suspended. The conditions already say why."""
    return Decision(draft.status(start_time=None))


def suspended(
    draft: Draft, expected: Expected, pods: Sequence[PodView], evicted: PodView | None = None
) -> Decision:
    """End the pods, and then set the condition Suspended. The job later continues in a new attempt, which does not
    count as a restart.

    pods: the pods of all attempts. evicted: a pod whose Workload was deactivated.
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
        message = f"{why}: attempt {attempt} waits until {names} ended: checkpoints are uploaded first"
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
    cause = f" ({failure.message})" if failure is not None and failure.message else ""
    return f"Kueue has deactivated the Workload of the job{cause}"


def _running_reason(status: JobStatus) -> str | None:
    running = status.condition(ConditionType.RUNNING)
    return running.reason if running is not None else None


def resumed(draft: Draft, expected: Expected) -> Decision:
    """Resume the job. All replicas, including replicas added during the suspension, start in the same attempt."""
    attempt = draft.job.status.attempt
    if expected.restarts_with is not None and attempt > 1:
        draft.replica_attempts = in_attempt(draft.job, expected.attempts, attempt)
    message = f"runPolicy.suspend is false: attempt {attempt} begins"
    chosen, known = own_checkpoint(draft.job), draft.resumed_from
    # Go back once for each value of `resumeUri`: a queue also suspends and resumes the job.
    if chosen and (known is None or known.uri != chosen):
        draft.resumed_from = ResumedFromStatus(uri=chosen, attempt=attempt)
        message += f" from {chosen}"
    draft.set(ConditionType.SUSPENDED, False, Reason.JOB_RESUMED, message)
    draft.skipped_checkpoints = None
    return Decision(draft.status(phase=Phase.PENDING), look_again=0.0)


def own_checkpoint(job: AnyJob) -> str | None:
    """Return `resumeUri` if it names a checkpoint of the job itself, else None. It may end with a slash."""
    if isinstance(job, UnreadableJob) or job.spec.artifacts is None:
        return None
    uri, prefix = job.spec.artifacts.resume_uri or "", f"{job.artifacts_uri}/{contract.CHECKPOINTS}/"
    folder = uri.removeprefix(prefix).removesuffix("/")
    return uri if uri.startswith(prefix) and folder and "/" not in folder else None
