"""What a pass knows of a job, and who creates the job's pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from dtj.api.job import Fault, Job
from dtj.api.status import JobStatus
from dtj.api.unreadable import AnyJob
from dtj.plan.model import Plan
from dtj.reconcile.actions import Action
from dtj.reconcile.view import Owned, OwnedDeployment
from dtj.status.draft import Evaluation
from dtj.status.mpijob import MpiJob
from dtj.status.observed import Expected, Observed
from dtj.status.pods import PodView


class Delegate(Protocol):
    """Who creates a job's pods: this operator (`Native`), or mpi-operator from an MPIJob (`HandedOver`)."""

    @property
    def mpijob(self) -> MpiJob | None:
        """The MPIJob, where there is one."""

    def expected(self, expected: Expected, pods: Sequence[PodView], attempt: int) -> Expected:
        """What the plan asks for, with the names that the job's pods have."""

    def actions(self, seen: Snapshot, decision: Evaluation) -> list[Action]:
        """The requests that follow from a decision, in order, once its status is stored."""

    def look_again(self, status: JobStatus, now: datetime) -> float | None:
        """Seconds until the next pass is due although no pod changes; None: none is."""


@dataclass(frozen=True)
class Snapshot:
    """What is known of a job at one moment."""

    job: AnyJob
    """With the name of its ssh Secret, also before that is stored."""
    faults: Sequence[Fault]
    plan: Plan | None
    """None where the job has faults."""
    observed: Observed
    services: Sequence[Owned]
    configs: Sequence[Owned]
    boards: Sequence[OwnedDeployment]
    """The Deployments of its TensorBoard."""
    delegate: Delegate
    no_tensorboard: str | None
    """Why the API server refused the job's TensorBoard."""
    now: datetime
    names_secret: bool = False
    """Whether the stored status does not have the name of the ssh Secret yet."""


def size(job: AnyJob, pods: Sequence[PodView]) -> int:
    """How many pods a job wants or has, whichever is more: what a pass costs grows with it."""
    roles = job.spec.replica_specs.given() if isinstance(job, Job) else {}
    wanted = sum(role.replicas for role in roles.values())
    return max(wanted, len(pods))
