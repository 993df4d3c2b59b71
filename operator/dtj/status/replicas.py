"""The pods of the present attempt, and their counts by role and state."""

from __future__ import annotations

from collections.abc import Sequence

from dtj.api.status import ReplicaStatus
from dtj.status.observed import Expected
from dtj.status.pods import PodView


def present(expected: Expected, pods: Sequence[PodView], attempt: int) -> list[PodView]:
    """Return the pods of the present attempt. If all pods restart together, pods of removed replicas belong to it."""
    others = attempt if expected.restarts_with is None else None
    return [pod for pod in pods if pod.attempt == expected.attempts.get(pod.name, others)]


def replica_statuses(expected: Expected, pods: Sequence[PodView]) -> dict[str, ReplicaStatus]:
    """Count the pods of each role by state."""
    statuses = {}
    for role, names in expected.roles.items():
        of_role = [pod for pod in pods if pod.role == role]
        succeeded = sum(pod.succeeded for pod in of_role)
        failed = sum(not pod.succeeded and (pod.phase == "Failed" or pod.exit is not None) for pod in of_role)
        statuses[role] = ReplicaStatus(
            desired=len(names),
            active=len(of_role) - succeeded - failed,
            ready=sum(pod.running and pod.ready for pod in of_role),
            succeeded=succeeded,
            failed=failed,
        )
    return statuses
