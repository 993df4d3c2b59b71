"""Waits of a job that are no failures: suspension by the user, queues, and gang scheduling.

`evaluate` calls these functions before it looks for losses, because a suspension ends pods. The objects of gang
schedulers are in `plan.gang`, and the suspension of an MPIJob in `mpijob`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtj.api.reasons import Reason
from dtj.api.shape import Shape
from dtj.api.spec import Gang
from dtj.api.status import ConditionStatus, ConditionType, JobStatus, Phase, ResumedFromStatus
from dtj.api.stored_job import AnyJob, UnreadableJob
from dtj.status.decision import Decision, PodChanges
from dtj.status.draft import Draft
from dtj.status.failure import attempt_loss
from dtj.status.force_deletion import describe_ending
from dtj.status.observed import GATED, is_gated
from dtj.status.pods import PodSet, PodView
from dtj.status.restart_policy import in_attempt, next_attempt
from dtj_trainer import contract

# Prefixes of the reason that Kueue sets on a pod of a deactivated Workload: in version 0.19, and before 0.10.
_DEACTIVATIONS = ("WorkloadEvictedDueToDeactivated", "WorkloadEvictedDueToInactiveWorkload")


def is_suspending(status: JobStatus) -> bool:
    """Return whether the deletion of the pods has begun. All pods then end, even if the job is resumed meanwhile."""
    return _running_reason(status) in (Reason.SUSPENDING, Reason.WORKLOAD_DEACTIVATED)


def deactivation(shape: Shape, pods: PodSet) -> PodView | None:
    """Return a needed pod that Kueue evicts because its Workload was deactivated; None if there is none."""
    needed = (pod for pod in pods.unusual if pod.name in shape.needed)
    return next((pod for pod in needed if pod.reason.startswith(_DEACTIVATIONS)), None)


def is_deactivated(status: JobStatus) -> bool:
    """Return whether the job is suspended because its Workload was deactivated."""
    suspended = status.conditions.by_type.get(ConditionType.SUSPENDED)
    return (
        suspended is not None
        and suspended.status is ConditionStatus.TRUE
        and suspended.reason == Reason.WORKLOAD_DEACTIVATED
    )


def is_held(job: AnyJob) -> bool:
    """Return whether the job stays suspended because its Workload was deactivated.

    The suspension lasts until the spec changes, for example because a user suspends and resumes the job.
    """
    suspended = job.status.conditions.by_type.get(ConditionType.SUSPENDED)
    return (
        suspended is not None
        and is_deactivated(job.status)
        and suspended.observed_generation == job.generation
    )


def held(draft: Draft) -> Decision:
    """Keep the job suspended. The conditions already say why."""
    return Decision(draft.status(start_time=None))


def suspended(
    draft: Draft, shape: Shape, pods: Sequence[PodView], evicted: PodView | None = None
) -> Decision:
    """End the pods, and then set the condition Suspended. The job later continues in a new attempt, which does not
    count as a restart.

    pods: the pods of all attempts. evicted: a pod whose Workload was deactivated.
    """
    suspend, old = draft.job.run_policy.suspend, draft.job.status
    attempt, reason = draft.job.attempt, _running_reason(old)
    deactivated = not suspend and (
        reason == Reason.WORKLOAD_DEACTIVATED or (evicted is not None and reason != Reason.SUSPENDING)
    )
    if deactivated and reason != Reason.WORKLOAD_DEACTIVATED and evicted is not None:
        loss = attempt_loss(attempt, PodSet([evicted]), ())
        draft.failure = loss.failure if loss else None
    why = _deactivated(draft) if deactivated else "suspended by runPolicy.suspend"
    after = Reason.WORKLOAD_DEACTIVATED if deactivated else Reason.JOB_SUSPENDED
    draft.set(ConditionType.RESTARTING, False, after, why)
    if pods:
        names_of_pods = {pod.name for pod in pods}
        names = describe_ending(pods)
        message = f"{why}: attempt {attempt} waits until {names} ended: pods first upload checkpoints"
        meanwhile = Reason.WORKLOAD_DEACTIVATED if deactivated else Reason.SUSPENDING
        draft.set(ConditionType.RUNNING, False, meanwhile, message)
        # Delete the stages in reverse order. The chief can save only while its parameter servers run.
        stages = (names_of_pods.intersection(stage) for stage in reversed(shape.stage_names))
        return Decision(
            draft.status(), pods=PodChanges(end=frozenset(next(filter(None, stages), names_of_pods)))
        )
    if is_suspending(old):
        attempt += 1
        next_attempt(draft, shape, pods, cause=None)
    # The message names the attempt, so that each suspension produces its own event.
    message = f"{why}; attempt {attempt} is next"
    if deactivated:
        message += (
            ": Kueue queues it after you resume the job (dtj resume, or set runPolicy.suspend to true, then "
        )
        "to false)"
    draft.set(ConditionType.RUNNING, False, Reason.JOB_SUSPENDED, message)
    draft.set(ConditionType.SUSPENDED, True, after, message)
    status = draft.status(phase=Phase.SUSPENDED, start_time=None, all_running_time=None)
    return Decision(status, look_again=None if suspend or deactivated else 0.0)


def _deactivated(draft: Draft) -> str:
    failure = draft.failure
    cause = f" ({failure.message})" if failure is not None and failure.message else ""
    return f"Kueue has deactivated the Workload of the job{cause}"


def _running_reason(status: JobStatus) -> str | None:
    running = status.conditions.by_type.get(ConditionType.RUNNING)
    return running.reason if running is not None else None


def resumed(draft: Draft, shape: Shape) -> Decision:
    """Resume the job. All replicas, including replicas added during the suspension, start in the same attempt."""
    attempt = draft.job.status.attempt
    if shape.restarts_with is not None and attempt > 1:
        draft.replica_attempts = in_attempt(draft.job, shape.attempts, attempt)
    message = f"runPolicy.suspend is false: attempt {attempt} begins"
    chosen, known = own_checkpoint(draft.job), draft.resumed_from
    # Go back to the chosen checkpoint only once for each value of `resumeUri`: after a suspension by a queue, the job
    # continues from its newest checkpoint.
    if chosen and (known is None or known.uri != chosen):
        draft.resumed_from = ResumedFromStatus(uri=chosen, attempt=attempt)
        message += f" from {chosen}"
    draft.set(ConditionType.SUSPENDED, False, Reason.JOB_RESUMED, message)
    draft.skipped_checkpoints = None
    return Decision(draft.status(phase=Phase.PENDING), look_again=0.0)


def own_checkpoint(job: AnyJob) -> str | None:
    """Return `resumeUri` if it names a checkpoint of the job itself, with or without a final slash, else None."""
    if isinstance(job, UnreadableJob) or job.spec.artifacts is None:
        return None
    uri, prefix = job.spec.artifacts.resume_uri or "", f"{job.artifacts_uri}/{contract.CHECKPOINTS}/"
    folder = uri.removeprefix(prefix).removesuffix("/")
    return uri if uri.startswith(prefix) and folder and "/" not in folder else None


# Waits of a job in a queue or for gang scheduling, which places all pods together or none.

_UNPLACED = (Reason.UNSCHEDULABLE, GATED)
_KUEUE_PREFIX = "kueue.x-k8s.io/"


def is_queued(job: AnyJob, shape: Shape, pods: PodSet) -> bool:
    """Return whether the job waits in a queue. The deadlines of such a job do not run, as for a Kubernetes Job that
    Kueue suspends.

    Pods that are admitted one by one hold quota while others wait. The deadlines then run from the first admission,
    so that startDeadlineSeconds ends a job that holds only a part of its quota.
    """
    gated = [pod for pod in pods.unusual if pod.name in shape.needed and is_gated(pod)]
    if job.run_policy.scheduling_policy.gang is Gang.KUEUE or not gated:
        return bool(gated)
    needed = sum(pod.name in shape.needed for pod in pods)
    return len(gated) == needed and job.status.all_running_time is None


def group_wait(
    job: AnyJob, shape: Shape, pods: Sequence[PodView], why: tuple[str, str] | None
) -> tuple[str, str] | None:
    """Return the reason and message of a wait in a queue or for gang scheduling, or `why`, any other obstacle."""
    if why is not None and why[0] not in _UNPLACED:
        return why
    policy = job.run_policy.scheduling_policy
    gated = [pod for pod in pods if pod.name in shape.needed and is_gated(pod)]
    if gated and (policy.gang is Gang.KUEUE or (why is not None and why[0] == GATED)):
        return Reason.QUEUED, _queue_wait(job, shape, min(gated, key=lambda pod: (pod.role, pod.index)))
    unplaced = any(pod.name in shape.first and not pod.scheduled for pod in pods)
    if policy.gang in (Gang.NONE, Gang.KUEUE) or not unplaced:
        return why
    queue = f", queue {policy.queue}" if policy.queue else ""
    message = f"waits until {policy.gang} places its {len(shape.first)} pods together{queue}"
    return Reason.QUEUED, message + (f"; {why[1]}" if why else "")


def _show(workload: str | None) -> str:
    return f"kubectl describe workload {workload}" if workload else "kubectl get workloads"


def _queue_wait(job: AnyJob, shape: Shape, pod: PodView) -> str:
    """Describe the wait of a pod that a scheduling gate holds, with the command that shows more."""
    policy = job.run_policy.scheduling_policy
    if policy.gang is Gang.KUEUE:
        return (
            f"waits for quota in queue {policy.queue}: Kueue holds the pods of attempt "
            f"{max(shape.attempts.values())} until it admits all of them; if this lasts, the queue may not exist, "
            "or its quota may be smaller than the job: "
            f"{_show(shape.workload)} --namespace {job.namespace}"
        )
    if pod.queue is None and not any(gate.startswith(_KUEUE_PREFIX) for gate in pod.gates):
        return f"the scheduling gate {', '.join(pod.gates) or 'of unknown name'} holds {pod.name}"
    queue = f"queue {pod.queue}" if pod.queue else "a queue that its pods do not name"
    return (
        f"waits for quota in {queue}: Kueue admits the pods of this job one by one, so that the job may hold a part "
        "of what it needs; with runPolicy.schedulingPolicy.gang: Kueue, Kueue admits all of them or none; if this "
        "lasts, the queue may not exist, or its quota may be too small: "
        f"kubectl get workloads --namespace {job.namespace}"
    )
