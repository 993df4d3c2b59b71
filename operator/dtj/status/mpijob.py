"""The state of the MPIJob to which a job is delegated.

The pods are the better source. `Running` of an MPIJob stays True when a worker dies, an MPIJob that is `Failed` after
an eviction may succeed later, and the status of an MPIJob has no exit codes. The operator therefore uses the MPIJob
only for what pods do not show: a success or a failure whose pods are gone, a queue that suspends the MPIJob, and an
MPIJob that no controller handles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dtj.api.identity import LABEL_ATTEMPT
from dtj.api.reasons import Reason
from dtj.status.times import seconds_since

TAKE_UP_SECONDS = 30.0
"""Seconds without a condition after which the operator assumes that no mpi-operator handles the MPIJob."""


@dataclass(frozen=True)
class MpiCondition:
    """A condition of an MPIJob that is True."""

    reason: str
    message: str
    time: str | None


@dataclass(frozen=True)
class MpiJob:
    """The fields of an MPIJob on which the status of a job depends."""

    name: str
    attempt: int
    created: str | None
    deleting: bool
    suspended: bool
    """Whether runPolicy.suspend is true. Kueue or a user sets the field, never the operator."""
    taken_up: bool
    """Whether mpi-operator has set a condition."""
    completed: bool
    """Whether the MPIJob has a completionTime. Before that, mpi-operator deletes no pods, and a failed MPIJob may
    still succeed."""
    succeeded: MpiCondition | None
    failed: MpiCondition | None


def view_mpijob(manifest: Mapping[str, Any]) -> MpiJob:
    """Read the manifest of an MPIJob of kubeflow.org/v2beta1."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    conditions = status.get("conditions") or []
    holding = {c["type"]: c for c in conditions if c.get("status") == "True"}
    return MpiJob(
        name=metadata["name"],
        attempt=int((metadata.get("labels") or {}).get(LABEL_ATTEMPT, 0)),
        created=metadata.get("creationTimestamp"),
        deleting=metadata.get("deletionTimestamp") is not None,
        suspended=bool((manifest["spec"].get("runPolicy") or {}).get("suspend")),
        taken_up=bool(conditions),
        completed=status.get("completionTime") is not None and bool({"Succeeded", "Failed"} & holding.keys()),
        succeeded=_condition(holding.get("Succeeded")),
        failed=_condition(holding.get("Failed")),
    )


def _condition(condition: Mapping[str, Any] | None) -> MpiCondition | None:
    if condition is None:
        return None
    # mpi-operator appends "/" and the reason of a pod, which may be empty: `BackoffLimitExceeded/`.
    reason = str(condition.get("reason") or "Failed").rstrip("/")
    return MpiCondition(reason, str(condition.get("message") or ""), condition.get("lastTransitionTime"))


def not_taken_up(mpijob: MpiJob | None, now: datetime) -> tuple[str, str] | None:
    """Return the reason and message for an MPIJob that no controller handles; None for any other MPIJob."""
    if mpijob is None or mpijob.taken_up or mpijob.deleting or mpijob.created is None:
        return None
    if seconds_since(mpijob.created, now) < TAKE_UP_SECONDS:
        return None
    return Reason.MPIJOB_NOT_TAKEN_UP, (
        f"MPIJob {mpijob.name} has no condition {TAKE_UP_SECONDS:.0f} s after its creation: check that mpi-operator "
        "runs and watches this namespace; mpi-operator reports a fault of an MPIJob only in the events of the MPIJob"
    )
