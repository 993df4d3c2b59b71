"""The influence of an MPIJob on the status of its job. The pods decide everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from dtj.api.horovod import LAUNCHER
from dtj.api.reasons import OperatorFailureClass, Reason
from dtj.api.shape import Shape
from dtj.api.spec import CleanPodPolicy
from dtj.api.status import ConditionType, Failure, JobStatus, Phase
from dtj.api.stored_job import AnyJob
from dtj.status.clean_up import is_stopped, left_over
from dtj.status.decision import Decision
from dtj.status.draft import Draft
from dtj.status.failure import SETTLE_SECONDS, Loss
from dtj.status.force_deletion import describe_ending
from dtj.status.observed import MpiJob, Observed
from dtj.status.pods import PodView
from dtj.status.suspension import is_suspending
from dtj.status.times import seconds_since

END_SECONDS = 60.0
"""Seconds that mpi-operator has after the job's end to finish the MPIJob and to clean up."""
# mpi-operator sets this reason on an MPIJob whose pods were evicted.
_EVICTED = "MPIJobEvicted"


def of_attempt(observed: Observed, attempt: int) -> MpiJob | None:
    """Return the MPIJob of the present attempt, unless the MPIJob is being deleted."""
    mpijob = observed.mpijob
    return mpijob if mpijob is not None and mpijob.attempt == attempt and not mpijob.deleting else None


def with_launcher(shape: Shape, pods: Sequence[PodView], attempt: int) -> Shape:
    """Replace the planned launcher name by the actual one. A Kubernetes Job created and named the launcher pod."""
    launchers = [pod for pod in pods if pod.role == LAUNCHER and pod.attempt == attempt]
    if not launchers:
        return shape
    (planned,) = shape.decisive
    # Prefer a launcher that succeeded, even if the Kubernetes Job has created another launcher since.
    launcher = max(launchers, key=lambda pod: (pod.succeeded, not pod.deleting, pod.name)).name
    stages = (
        tuple(replace(each, name=launcher) if each.name == planned else each for each in stage)
        for stage in shape.stages
    )
    return replace(shape, stages=tuple(stages), decisive=(launcher,))


def mpijob_held(draft: Draft, mpijob: MpiJob, pods: Sequence[PodView]) -> Decision:
    """Suspend the job while its queue holds it. The same attempt continues later from the newest checkpoint."""
    message = f"MPIJob {mpijob.name} is suspended (its runPolicy.suspend): Kueue suspends MPIJobs that wait for quota"
    if pods:
        message += f"; {describe_ending(pods)} end"
    draft.set(ConditionType.RESTARTING, False, Reason.MPIJOB_SUSPENDED, message)
    draft.set(ConditionType.RUNNING, False, Reason.MPIJOB_SUSPENDED, message)
    draft.set(ConditionType.SUSPENDED, True, Reason.MPIJOB_SUSPENDED, message)
    status = draft.status(phase=Phase.SUSPENDED, start_time=None, all_running_time=None)
    return Decision(status)


def was_held(old: JobStatus) -> bool:
    """Return whether the stored status says that a queue holds the job."""
    suspended = old.conditions.by_type.get(ConditionType.SUSPENDED)
    return (
        suspended is not None
        and ConditionType.SUSPENDED in old.conditions.holding
        and suspended.reason == Reason.MPIJOB_SUSPENDED
    )


def released(draft: Draft) -> Decision:
    """Resume the job after the queue released it or after its MPIJob was deleted."""
    draft.set(ConditionType.SUSPENDED, False, Reason.MPIJOB_RESUMED, "the MPIJob is no longer suspended")
    return Decision(draft.status(phase=Phase.PENDING), look_again=0.0)


def mpijob_loss(attempt: int, mpijob: MpiJob | None) -> Loss | None:
    """Return the failure of the MPIJob as a loss, for use when no pod explains the failure."""
    if mpijob is None or mpijob.failed is None:
        return None
    condition = mpijob.failed
    evicted = condition.reason == _EVICTED
    failure = Failure(
        attempt=attempt,
        failure_class=OperatorFailureClass.EVICTED if evicted else OperatorFailureClass.MPIJOB_FAILED,
        message=f"MPIJob {mpijob.name}: {condition.reason}: {condition.message}",
    )
    return Loss(failure, infrastructure=evicted, settle=SETTLE_SECONDS, finished=condition.time)


def ends_mpijob(job: AnyJob, status: JobStatus, mpijob: MpiJob, now: datetime) -> bool:
    """Return whether to delete the MPIJob with all objects that mpi-operator created for it."""
    policy = job.run_policy
    if mpijob.deleting:
        return False
    if not status.conditions.finished:
        return mpijob.attempt < status.attempt or policy.suspend or is_suspending(status)
    if policy.clean_pod_policy is CleanPodPolicy.ALL or is_stopped(status):
        return True
    # mpi-operator creates new pods without end for an MPIJob that has not completed.
    lingers = policy.clean_pod_policy is not CleanPodPolicy.NONE and end_left(status, now) <= 0
    return lingers and not mpijob.completed


def abandoned(
    job: AnyJob, status: JobStatus, mpijob: MpiJob | None, pods: Sequence[PodView], now: datetime
) -> frozenset[str]:
    """Return the names of the pods to delete because mpi-operator does not delete them."""
    if status.conditions.finished:
        done = mpijob is None or (
            mpijob.completed and not mpijob.deleting and not ends_mpijob(job, status, mpijob, now)
        )
        return left_over(job, status, pods) if done else frozenset()
    if mpijob is not None:
        return frozenset()
    # The MPIJob is gone, but pods of earlier attempts remain: a user deleted the MPIJob with --cascade=orphan.
    return frozenset(pod.name for pod in pods if pod.attempt < status.attempt)


def end_left(status: JobStatus, now: datetime) -> float:
    """Return the seconds that mpi-operator still has to finish the MPIJob of a job that has ended."""
    return END_SECONDS - seconds_since(status.completion_time, now) if status.completion_time else 0.0
