"""Select the pods of an attempt to create now."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from dtj.api.job import Job
from dtj.api.spec import Resume
from dtj.api.status import JobStatus
from dtj.api.unreadable import AnyJob
from dtj.status.observed import Expected
from dtj.status.pods import PodView


def due(job: AnyJob, expected: Expected, pods: Sequence[PodView]) -> frozenset[str]:
    """Return the names of the pods to create: the missing pods of the first incomplete stage.

    All earlier stages must be ready.

    pods: all pods of the job. A pod of an earlier attempt keeps its name until it has ended.
    """
    named = {pod.name: pod for pod in pods if pod.attempt == expected.attempts.get(pod.name)}
    if expected.restarts_with is None and is_begun(job.status, expected.created_last, named):
        # Pods that a changed spec adds are created in the next attempt.
        return frozenset()
    at_once = expected.next_stage_on_running and not may_restore(job)
    for stage in expected.stages:
        absent = frozenset(name for name in stage if name not in named)
        if absent:
            return absent - {pod.name for pod in pods}
        if not all(_permits_next_stage(named[name], at_once) for name in stage):
            break
    return frozenset()


def is_begun(old: JobStatus, created_last: Set[str], existing: Collection[str]) -> bool:
    """Return whether every pod of the attempt has been created, so that the ranks may have started.

    From then on, the loss of a pod ends the attempt.

    created_last: see `Expected`. existing: names of the attempt's pods.
    """
    return old.all_running_time is not None or all(name in existing for name in created_last)


def may_restore(job: AnyJob) -> bool:
    """Return whether the pods may restore a checkpoint before they become ready. A restore can take any time."""
    status, artifacts = job.status, job.spec.artifacts if isinstance(job, Job) else None
    return (
        status.attempt > 1
        or (status.artifacts is not None and status.artifacts.checkpoint is not None)
        or (artifacts is not None and artifacts.resume is Resume.FROM_URI)
    )


def _permits_next_stage(pod: PodView, at_once: bool) -> bool:
    """Return whether this pod permits the creation of the next stage.

    at_once: whether a running pod is enough. The kubelet reports readiness a second or more late.
    """
    return pod.succeeded or (pod.running and (pod.ready or at_once))
