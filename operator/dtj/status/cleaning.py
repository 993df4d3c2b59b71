"""Which pods end with their job."""

from __future__ import annotations

from dtj.api.condition_types import ConditionType
from dtj.api.reasons import STOPPED
from dtj.api.spec import CleanPodPolicy
from dtj.api.status import JobStatus
from dtj.api.unreadable import AnyJob
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
