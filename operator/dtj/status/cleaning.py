"""Which pods end with their job, or with their attempt."""

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
    """Whether a job failed for what its pods did not do: they may go on, and must not."""
    failed = status.condition(ConditionType.FAILED)
    return failed is not None and (failed.reason in STOPPED or is_stalled(status))


def ends_pods(job: AnyJob, status: JobStatus) -> bool:
    """Whether the pods that still run are told to end, now that the job has ended."""
    return job.run_policy.clean_pod_policy is not CleanPodPolicy.NONE or is_stopped(status)


def counted_out(status: JobStatus) -> JobStatus:
    """The status of such a job: those pods count as gone from its end on, so that their way needs no more writes."""
    gone = {"active": 0, "ready": 0}
    counts = {role: count.model_copy(update=gone) for role, count in status.replica_statuses.items()}
    return status.model_copy(update={"replica_statuses": counts})


def left_over(job: AnyJob, status: JobStatus, pods: Sequence[PodView]) -> frozenset[str]:
    """Names of the pods of a job that has ended that cleanPodPolicy ends."""
    if not ends_pods(job, status):
        return frozenset()
    every = job.run_policy.clean_pod_policy is CleanPodPolicy.ALL
    return frozenset(pod.name for pod in pods if every or not pod.ended)


def superseded(job: AnyJob, expected: Expected | None, pods: Sequence[PodView]) -> frozenset[str]:
    """Names of the pods of an earlier attempt, and of those that a job with less replicas does not want any more."""
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
    """The attempt of each pod by the status, for a job without a plan."""
    status = job.status
    known = status.replica_attempts or {}
    alone = (job.rules is not None and job.rules.restarts_alone) or status.replica_attempts is not None
    attempt = status.current_attempt
    return {name: known.get(name.removeprefix(f"{job.name}-"), 1) if alone else attempt for name in pods}
