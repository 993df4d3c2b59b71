"""What a job waits for whose pods are placed all together or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from dtj.api.scheduling import Gang
from dtj.status.observed import Expected
from dtj.status.pods import PodView

QUEUED = "Queued"
"""Reason of the condition Running."""
_GATED = "SchedulingGated"
_UNPLACED = ("Unschedulable", _GATED)


def is_queued(expected: Expected, pods: Sequence[PodView]) -> bool:
    """Whether Kueue holds the pods: no time of the job's runs then, as with a Kubernetes Job that Kueue suspends."""
    return expected.gang is Gang.KUEUE and any(
        pod.name in expected.needed and pod.waiting is not None and pod.waiting[0] == _GATED for pod in pods
    )


def group_wait(
    expected: Expected, pods: Sequence[PodView], why: tuple[str, str] | None
) -> tuple[str, str] | None:
    """Reason and message of a wait for the group's place, or `why`, what else keeps the pods from running."""
    if why is not None and why[0] not in _UNPLACED:
        return why
    if is_queued(expected, pods):
        return QUEUED, (
            f"waits for quota in queue {expected.queue}: "
            f"Kueue holds the pods of attempt {max(expected.attempts.values())} until it admits all of them"
        )
    unplaced = any(pod.name in expected.first and not pod.scheduled for pod in pods)
    if expected.gang in (Gang.NONE, Gang.KUEUE) or not unplaced:
        return why
    queue = f", queue {expected.queue}" if expected.queue else ""
    message = f"waits until {expected.gang} places its {len(expected.stages[0])} pods together{queue}"
    return QUEUED, message + (f"; {why[1]}" if why else "")
