"""What an MPIJob says of the job that was handed over as it.

The pods say more: mpi-operator's `Running` stays True when a worker dies, an evicted worker makes an MPIJob `Failed`
that may succeed later, and neither exit codes nor pods are in its status. So it counts where pods say nothing: that
it has succeeded or failed though its pods are gone, that a queue holds it, that nobody takes it up.
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
class Said:
    """A condition of an MPIJob that holds."""

    reason: str
    message: str
    time: str | None


@dataclass(frozen=True)
class MpiJob:
    """An MPIJob, as far as a job's status depends on it."""

    name: str
    attempt: int
    created: str | None
    deleting: bool
    suspended: bool
    """By Kueue or by hand: the operator never does that."""
    taken_up: bool
    """Whether mpi-operator has set a condition."""
    completed: bool
    """Whether mpi-operator is done with it: without a completionTime it cleans nothing up, and a failure may yet be a
    success."""
    succeeded: Said | None
    failed: Said | None


def view_mpijob(manifest: Mapping[str, Any]) -> MpiJob:
    """Read an MPIJob of kubeflow.org/v2beta1."""
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
        succeeded=_said(holding.get("Succeeded")),
        failed=_said(holding.get("Failed")),
    )


def _said(condition: Mapping[str, Any] | None) -> Said | None:
    if condition is None:
        return None
    # `BackoffLimitExceeded/`: mpi-operator adds the reason of a pod, which has none.
    reason = str(condition.get("reason") or "Failed").rstrip("/")
    return Said(reason, str(condition.get("message") or ""), condition.get("lastTransitionTime"))


def not_taken_up(mpijob: MpiJob | None, now: datetime) -> tuple[str, str] | None:
    """Reason and message of an MPIJob that nobody looks after."""
    if mpijob is None or mpijob.taken_up or mpijob.deleting or mpijob.created is None:
        return None
    if seconds_since(mpijob.created, now) < TAKE_UP_SECONDS:
        return None
    return Reason.MPIJOB_NOT_TAKEN_UP, (
        f"MPIJob {mpijob.name} has no condition {TAKE_UP_SECONDS:.0f} s after it was made: does mpi-operator run, "
        "and in this namespace too? mpi-operator reports a fault of an MPIJob only in the events of the MPIJob"
    )
