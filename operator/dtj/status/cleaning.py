"""Select the pods to delete at the end of a job or of an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dtj.api.condition_types import ConditionType
from dtj.api.reasons import STOPPED
from dtj.api.spec import CleanPodPolicy
from dtj.api.status import JobStatus
from dtj.api.unreadable import AnyJob
from dtj.status.observed import Expected
from dtj.status.pods import PodView
from dtj.status.stall import is_stalled


def is_stopped(status: JobStatus) -> bool:
    """Return whether a job failed for a reason outside its pods. Such pods may still run and must be deleted."""
    failed = status.condition(ConditionType.FAILED)
    return failed is not None and (failed.reason in STOPPED or is_stalled(status))


def ends_pods(job: AnyJob, status: JobStatus) -> bool:
    """Return whether the operator deletes the running pods of a job that has ended."""
    return job.run_policy.clean_pod_policy is not CleanPodPolicy.NONE or is_stopped(status)


def counted_out(status: JobStatus) -> JobStatus:
    """Set the counts of active and ready pods to 0, so that the end of the pods needs no further status writes."""
    no_pods = {"active": 0, "ready": 0}
    counts = {role: count.model_copy(update=no_pods) for role, count in status.replica_statuses.items()}
    return status.model_copy(update={"replica_statuses": counts})


def left_over(job: AnyJob, status: JobStatus, pods: Sequence[PodView]) -> frozenset[str]:
    """Return the names of the pods that cleanPodPolicy deletes after the end of the job."""
    if not ends_pods(job, status):
        return frozenset()
    every = job.run_policy.clean_pod_policy is CleanPodPolicy.ALL
    return frozenset(pod.name for pod in pods if every or not pod.ended)


def superseded(job: AnyJob, expected: Expected | None, pods: Sequence[PodView]) -> frozenset[str]:
    """Return the names of the pods of earlier attempts and of removed replicas."""
    attempt = job.status.current_attempt
    if expected is None or not expected.planned:
        stored = stored_attempts(job, [pod.name for pod in pods])
        return frozenset(pod.name for pod in pods if pod.attempt < stored[pod.name])
    alone, attempts = expected.restarts_with is not None, expected.attempts
    return frozenset(
        pod.name
        for pod in pods
        if pod.attempt < attempts.get(pod.name, attempt) or (alone and pod.name not in attempts)
    )


def stored_attempts(job: AnyJob, pods: Iterable[str]) -> dict[str, int]:
    """Return the attempt of each pod as the status stores it, for a job without a plan."""
    status = job.status
    known = status.replica_attempts or {}
    alone = (job.rules is not None and job.rules.restarts_alone) or status.replica_attempts is not None
    attempt = status.current_attempt
    return {name: known.get(name.removeprefix(f"{job.name}-"), 1) if alone else attempt for name in pods}
