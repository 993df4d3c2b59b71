"""The decision of a reconcile pass: the new status and the actions to take."""

from __future__ import annotations

from dataclasses import dataclass

from dtj.api.status import JobStatus


@dataclass(frozen=True)
class PodChanges:
    """The names of the pods that the operator creates and deletes."""

    make: frozenset[str] = frozenset()
    """Pods to create."""
    end: frozenset[str] = frozenset()
    """Pods to delete with their grace period."""
    force: frozenset[str] = frozenset()
    """Pods to force-delete, because they did not end within their grace period."""


@dataclass(frozen=True)
class Decision:
    """The decision of a reconcile pass."""

    status: JobStatus
    look_again: float | None = None
    """Seconds until the next pass, if no event triggers a pass earlier."""
    pods: PodChanges = PodChanges()
    prepare: bool = False
    """Whether the attempt begins or goes on, so that its pods need the plan's other objects."""
    stalled_since: str | None = None
    """When the stall began, while the operator collects the stacks of the ranks."""
    expired: bool = False
    """Whether the TTL of the finished job has expired, so that the operator deletes the job."""
