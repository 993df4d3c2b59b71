"""A job that was handed over as an MPIJob, where that decides of it; all else is decided by its pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from dtj.api.condition_types import ConditionType
from dtj.api.failure_classes import OperatorFailureClass
from dtj.api.horovod import LAUNCHER
from dtj.api.reasons import Reason
from dtj.api.spec import CleanPodPolicy
from dtj.api.status import Failure, JobStatus, Phase
from dtj.api.unreadable import AnyJob
from dtj.status.cleaning import is_stopped, left_over
from dtj.status.draft import Draft, Evaluation
from dtj.status.failure import SETTLE_SECONDS, Loss
from dtj.status.mpijob import MpiJob
from dtj.status.observed import Expected, Observed
from dtj.status.overdue import describe_ending
from dtj.status.pods import PodView
from dtj.status.suspension import is_suspending
from dtj.status.times import seconds_since

END_SECONDS = 60.0
"""How long mpi-operator has, after the job's end, to end its MPIJob too and to clean up."""
# The reason of mpi-operator for an MPIJob whose pods were evicted.
_EVICTED = "MPIJobEvicted"


def of_attempt(observed: Observed, attempt: int) -> MpiJob | None:
    """The MPIJob of the present attempt, while it is meant to be there."""
    mpijob = observed.mpijob
    return mpijob if mpijob is not None and mpijob.attempt == attempt and not mpijob.deleting else None


def with_launcher(expected: Expected, pods: Sequence[PodView], attempt: int) -> Expected:
    """The same with the launcher's name as it is: a Job made that pod, and gave it a name."""
    launchers = [pod for pod in pods if pod.role == LAUNCHER and pod.attempt == attempt]
    if not launchers:
        return expected
    planned = expected.decisive[0]
    # One that came to its end decides, also where another was made since.
    found = max(launchers, key=lambda pod: (pod.succeeded, not pod.deleting, pod.name)).name
    names = {planned: found}
    return replace(
        expected,
        stages=[[names.get(name, name) for name in stage] for stage in expected.stages],
        decisive=[found],
        created_last=frozenset(names.get(name, name) for name in expected.created_last),
        attempts={names.get(name, name): number for name, number in expected.attempts.items()},
    )


def mpijob_held(draft: Draft, mpijob: MpiJob, pods: Sequence[PodView]) -> Evaluation:
    """The job waits for its queue; it goes on in the same attempt, with new pods, from its newest checkpoint."""
    message = (
        f"MPIJob {mpijob.name} is suspended (its runPolicy.suspend), as Kueue does with one that is to wait"
    )
    if pods:
        message += f"; {describe_ending(pods)} end"
    draft.set(ConditionType.RESTARTING, False, Reason.MPIJOB_SUSPENDED, message)
    draft.set(ConditionType.RUNNING, False, Reason.MPIJOB_SUSPENDED, message)
    draft.set(ConditionType.SUSPENDED, True, Reason.MPIJOB_SUSPENDED, message)
    status = draft.status(phase=Phase.SUSPENDED, start_time=None, all_running_time=None)
    return Evaluation(status)


def was_held(old: JobStatus) -> bool:
    """Whether a queue held the job until now."""
    suspended = old.condition(ConditionType.SUSPENDED)
    return (
        suspended is not None
        and old.holds(ConditionType.SUSPENDED)
        and suspended.reason == Reason.MPIJOB_SUSPENDED
    )


def released(draft: Draft) -> Evaluation:
    """The queue lets the job go on, or its MPIJob is gone and another is made."""
    draft.set(ConditionType.SUSPENDED, False, Reason.MPIJOB_RESUMED, "the MPIJob is suspended no more")
    return Evaluation(draft.status(phase=Phase.PENDING), look_again=0.0)


def mpijob_loss(attempt: int, mpijob: MpiJob | None) -> Loss | None:
    """That the MPIJob has failed, where no pod says why."""
    if mpijob is None or mpijob.failed is None:
        return None
    said = mpijob.failed
    evicted = said.reason == _EVICTED
    failure = Failure(
        attempt=attempt,
        failure_class=OperatorFailureClass.EVICTED if evicted else OperatorFailureClass.MPIJOB_FAILED,
        message=f"MPIJob {mpijob.name}: {said.reason}: {said.message}",
    )
    return Loss(failure, infrastructure=evicted, settle=SETTLE_SECONDS, finished=said.time)


def ends_mpijob(job: AnyJob, status: JobStatus, mpijob: MpiJob, now: datetime) -> bool:
    """Whether the MPIJob is to be deleted, with all that mpi-operator made of it."""
    policy = job.run_policy
    if mpijob.deleting:
        return False
    if not status.finished:
        return mpijob.attempt < status.attempt or policy.suspend or is_suspending(status)
    if policy.clean_pod_policy is CleanPodPolicy.ALL or is_stopped(status):
        return True
    # An MPIJob without an end of its own gets new pods from mpi-operator for ever.
    lingers = policy.clean_pod_policy is not CleanPodPolicy.NONE and end_left(status, now) <= 0
    return lingers and not mpijob.completed


def abandoned(
    job: AnyJob, status: JobStatus, mpijob: MpiJob | None, pods: Sequence[PodView], now: datetime
) -> frozenset[str]:
    """Names of the pods to delete because mpi-operator does not."""
    if status.finished:
        done = mpijob is None or (
            mpijob.completed and not mpijob.deleting and not ends_mpijob(job, status, mpijob, now)
        )
        return left_over(job, status, pods) if done else frozenset()
    if mpijob is not None:
        return frozenset()
    # Somebody has deleted the MPIJob, and not its pods.
    return frozenset(pod.name for pod in pods if pod.attempt < status.attempt)


def end_left(status: JobStatus, now: datetime) -> float:
    """Seconds that mpi-operator still has to end the MPIJob of a job that has ended."""
    return END_SECONDS - seconds_since(status.completion_time, now) if status.completion_time else 0.0
