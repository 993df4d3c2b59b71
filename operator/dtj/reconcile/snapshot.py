"""The snapshot of a job that a pass decides by, and the creator of the job's pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from dtj.api.job import Fault, Job
from dtj.api.status import JobStatus
from dtj.api.stored_job import AnyJob
from dtj.plan.model import Plan
from dtj.reconcile.actions import Action
from dtj.reconcile.view import Owned, OwnedDeployment
from dtj.status.decision import Decision
from dtj.status.observed import MpiJob, Observed
from dtj.status.pods import PodView
from dtj.status.record import RecordPod, Refusal


class Delegate(Protocol):
    """The creator of a job's pods: this operator (`Native`), or mpi-operator from an MPIJob (`ByMpiOperator`)."""

    @property
    def mpijob(self) -> MpiJob | None:
        """The MPIJob; None when the job has no MPIJob."""

    def actions(self, seen: Snapshot, decision: Decision) -> list[Action]:
        """Return the actions that follow from a decision, in order. The pass stores the status before the actions."""

    def look_again(self, status: JobStatus, now: datetime) -> float | None:
        """Return the seconds until the next pass is due without a change of a pod, or None when no pass is due."""


@dataclass(frozen=True)
class Snapshot:
    """The observed state of a job at one moment."""

    job: AnyJob
    """The job. Its status has the name of the ssh Secret, even if the stored status does not have the name yet."""
    faults: Sequence[Fault]
    plan: Plan | None
    """The plan of the job; None when the job has faults."""
    observed: Observed
    services: Sequence[Owned]
    configs: Sequence[Owned]
    boards: Sequence[OwnedDeployment]
    """The Deployments of the job's TensorBoard."""
    delegate: Delegate
    no_tensorboard: str | None
    """Why the API server refused the job's TensorBoard."""
    now: datetime
    records: Sequence[RecordPod] | None = None
    """The record pods of the job; None where the operator makes none."""
    no_record: Refusal | None = None
    """Why the API server refused the job's record pod."""
    names_secret: bool = False
    """Whether the stored status does not have the name of the ssh Secret yet."""


def size(job: AnyJob, pods: Sequence[PodView]) -> int:
    """Return the number of pods that a job wants or has, whichever is larger: a measure of the cost of a pass."""
    roles = job.given if isinstance(job, Job) else {}
    wanted = sum(role.replicas for role in roles.values())
    return max(wanted, len(pods))
