"""Deletions at the end of a job or an attempt: pods by runPolicy.cleanPodPolicy, and the job after its TTL.

`evaluate` calls the functions. Pods that do not end are in `force_deletion`, and `reconcile` sends the deletions.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from dtj.api.reasons import STOPPED
from dtj.api.shape import Shape, attempt_of
from dtj.api.spec import CleanPodPolicy
from dtj.api.status import ConditionType, JobStatus
from dtj.api.stored_job import AnyJob
from dtj.status.decision import Decision
from dtj.status.draft import earlier
from dtj.status.pods import PodSet, PodView
from dtj.status.progress import is_stalled
from dtj.status.times import seconds_since


def after_the_end(job: AnyJob, status: JobStatus, now: datetime) -> Decision:
    """Return the status of a job that has ended, and delete the job after its TTL, as a Kubernetes Job."""
    ttl, ended = job.run_policy.ttl_seconds_after_finished, status.completion_time
    if ttl is None or ended is None:
        return Decision(status)
    left = ttl - seconds_since(ended, now)
    return Decision(status, look_again=left) if left > 0 else Decision(status, expired=True)


def is_stopped(status: JobStatus) -> bool:
    """Return whether a job failed for a reason outside its pods. Such pods may still run and must be deleted."""
    failed = status.conditions.by_type.get(ConditionType.FAILED)
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


def superseded(job: AnyJob, shape: Shape | None, pods: PodSet) -> frozenset[str]:
    """Return the names of the pods of earlier attempts and of removed replicas."""
    attempt = job.attempt
    if shape is None or not shape.planned:
        stored = attempt_of(job)
        return frozenset(
            pod.name for pod in pods if pod.attempt < stored(pod.name.removeprefix(f"{job.name}-"))
        )
    removed = () if shape.restarts_with is None else (pod for pod in pods if pod.name not in shape.attempts)
    return frozenset(pod.name for pod in (*earlier(shape, pods, attempt), *removed))
