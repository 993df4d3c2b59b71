"""What a job waits for whose pods wait in a queue, or are placed all together or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from dtj.api.reasons import Reason
from dtj.api.scheduling import Gang
from dtj.api.unreadable import AnyJob
from dtj.status.observed import GATED, Expected, is_gated
from dtj.status.pods import PodView

_UNPLACED = (Reason.UNSCHEDULABLE, GATED)
_KUEUES = "kueue.x-k8s.io/"


def is_queued(job: AnyJob, expected: Expected, pods: Sequence[PodView]) -> bool:
    """Whether the job waits in a queue: no time of the job's runs then, as with a Kubernetes Job that Kueue suspends.

    Pods that are admitted one by one hold quota while others wait: time runs from the first of them on, so that
    startDeadlineSeconds ends a job that holds a part of what it needs.
    """
    needed = [pod for pod in pods if pod.name in expected.needed]
    held = [pod for pod in needed if is_gated(pod)]
    if expected.gang is Gang.KUEUE or not held:
        return bool(held)
    return len(held) == len(needed) and job.status.all_running_time is None


def group_wait(
    job: AnyJob, expected: Expected, pods: Sequence[PodView], why: tuple[str, str] | None
) -> tuple[str, str] | None:
    """Reason and message of a wait in a queue or for the group's place, or `why`, what else keeps the pods from
    running.
    """
    if why is not None and why[0] not in _UNPLACED:
        return why
    held = [pod for pod in pods if pod.name in expected.needed and is_gated(pod)]
    if held and (expected.gang is Gang.KUEUE or (why is not None and why[0] == GATED)):
        return Reason.QUEUED, _queue_wait(job, expected, min(held, key=lambda pod: (pod.role, pod.index)))
    unplaced = any(pod.name in expected.first and not pod.scheduled for pod in pods)
    if expected.gang in (Gang.NONE, Gang.KUEUE) or not unplaced:
        return why
    queue = f", queue {expected.queue}" if expected.queue else ""
    message = f"waits until {expected.gang} places its {len(expected.first)} pods together{queue}"
    return Reason.QUEUED, message + (f"; {why[1]}" if why else "")


def _queue_wait(job: AnyJob, expected: Expected, pod: PodView) -> str:
    """What a pod waits for that a scheduling gate holds, and where to look."""
    if expected.gang is Gang.KUEUE:
        return (
            f"waits for quota in queue {expected.queue}: Kueue holds the pods of attempt "
            f"{max(expected.attempts.values())} until it admits all of them; if this lasts, the queue may not exist, "
            "or its quota may be smaller than the job: "
            f"kubectl describe workload {expected.workload} --namespace {job.namespace}"
        )
    if pod.queue is None and not any(gate.startswith(_KUEUES) for gate in pod.gates):
        return f"{pod.name} is held by its scheduling gate {', '.join(pod.gates) or 'of unknown name'}"
    queue = f"queue {pod.queue}" if pod.queue else "a queue, and its pods name none"
    return (
        f"waits for quota in {queue}: Kueue admits the pods of this job one by one, so that the job may hold a part "
        "of what it needs; with runPolicy.schedulingPolicy.gang: Kueue it admits all of them or none; if this lasts, "
        f"the queue may not exist, or its quota may be too small: kubectl get workloads --namespace {job.namespace}"
    )
