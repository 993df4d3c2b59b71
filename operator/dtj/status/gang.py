"""Waits of a job in a queue or for gang scheduling, which places all pods together or none."""

from __future__ import annotations

from collections.abc import Sequence

from dtj.api.reasons import Reason
from dtj.api.scheduling import Gang
from dtj.api.unreadable import AnyJob
from dtj.status.observed import GATED, Expected, is_gated
from dtj.status.pods import PodView

_UNPLACED = (Reason.UNSCHEDULABLE, GATED)
_KUEUE_PREFIX = "kueue.x-k8s.io/"


def is_queued(job: AnyJob, expected: Expected, pods: Sequence[PodView]) -> bool:
    """Return whether the job waits in a queue. The deadlines of such a job do not run, as for a Kubernetes Job that
    Kueue suspends.

    Pods that are admitted one by one hold quota while others wait. The deadlines then run from the first admission,
    so that startDeadlineSeconds ends a job that holds only a part of its quota.
    """
    needed = [pod for pod in pods if pod.name in expected.needed]
    gated = [pod for pod in needed if is_gated(pod)]
    if expected.gang is Gang.KUEUE or not gated:
        return bool(gated)
    return len(gated) == len(needed) and job.status.all_running_time is None


def group_wait(
    job: AnyJob, expected: Expected, pods: Sequence[PodView], why: tuple[str, str] | None
) -> tuple[str, str] | None:
    """Return the reason and message of a wait in a queue or for gang scheduling, or `why`, any other obstacle."""
    if why is not None and why[0] not in _UNPLACED:
        return why
    gated = [pod for pod in pods if pod.name in expected.needed and is_gated(pod)]
    if gated and (expected.gang is Gang.KUEUE or (why is not None and why[0] == GATED)):
        return Reason.QUEUED, _queue_wait(job, expected, min(gated, key=lambda pod: (pod.role, pod.index)))
    unplaced = any(pod.name in expected.first and not pod.scheduled for pod in pods)
    if expected.gang in (Gang.NONE, Gang.KUEUE) or not unplaced:
        return why
    queue = f", queue {expected.queue}" if expected.queue else ""
    message = f"waits until {expected.gang} places its {len(expected.first)} pods together{queue}"
    return Reason.QUEUED, message + (f"; {why[1]}" if why else "")


def _queue_wait(job: AnyJob, expected: Expected, pod: PodView) -> str:
    """Describe the wait of a pod that a scheduling gate holds, with the command that shows more."""
    if expected.gang is Gang.KUEUE:
        return (
            f"waits for quota in queue {expected.queue}: Kueue holds the pods of attempt "
            f"{max(expected.attempts.values())} until it admits all of them; if this lasts, the queue may not exist, "
            "or its quota may be smaller than the job: "
            f"kubectl describe workload {expected.workload} --namespace {job.namespace}"
        )
    if pod.queue is None and not any(gate.startswith(_KUEUE_PREFIX) for gate in pod.gates):
        return f"the scheduling gate {', '.join(pod.gates) or 'of unknown name'} holds {pod.name}"
    queue = f"queue {pod.queue}" if pod.queue else "a queue, and its pods name none"
    return (
        f"waits for quota in {queue}: Kueue admits the pods of this job one by one, so that the job may hold a part "
        "of what it needs; with runPolicy.schedulingPolicy.gang: Kueue, Kueue admits all of them or none; if this "
        "lasts, the queue may not exist, or its quota may be too small: "
        f"kubectl get workloads --namespace {job.namespace}"
    )
