"""A job that the operator hands over as an MPIJob: the read of the MPIJob, and the requests that follow.

The operator creates and deletes the MPIJob and never changes an MPIJob: mpi-operator writes the status of the MPIJob,
and Kueue writes the field `suspend`. Each pass reads the MPIJob by name. The operator does not watch MPIJobs, so that
an administrator can install or delete the CRD of MPIJobs while the operator runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dtj.api.condition_types import ConditionType
from dtj.api.job import Manifest
from dtj.api.mpijob import MPIJOB_API_VERSION, MPIJOB_PLURAL
from dtj.api.reasons import Reason
from dtj.api.status import JobStatus
from dtj.api.unreadable import AnyJob
from dtj.cluster.port import ApiError, Cluster
from dtj.plan.model import Plan
from dtj.reconcile.actions import (
    Action,
    AwaitEarlier,
    CreateMpiJob,
    CreateOwn,
    DeleteMpiJob,
    ExpireJob,
)
from dtj.reconcile.native import Native, config_actions, ends
from dtj.reconcile.refusal import Refused
from dtj.reconcile.snapshot import Delegate, Snapshot
from dtj.reconcile.view import controller_uid
from dtj.status.decision import Decision
from dtj.status.delegated import end_left, ends_mpijob
from dtj.status.mpijob import MpiJob, view_mpijob

LOOK_SECONDS = 10.0
"""Seconds between two reads of an MPIJob while its pods do not change."""
ENDING_SECONDS = 2.0
"""Seconds between two reads of an MPIJob that is being deleted."""

NOT_SERVED = (
    f"the cluster does not serve {MPIJOB_PLURAL} of {MPIJOB_API_VERSION} (those of v1 are training-operator's): "
    "install Kubeflow's mpi-operator, 0.5 or newer, or use spec.horovod.launcher: Native"
)


async def find_delegate(cluster: Cluster, job: AnyJob, plan: Plan | None) -> Delegate:
    """Return the creator of this plan's pods. For an MPIJob, read the MPIJob from the API server. Raises ApiError."""
    if plan is None or plan.mpijob is None:
        return Native()
    try:
        manifest = await cluster.get(plan.mpijob)
    except ApiError as error:
        if error.status != 403:
            raise
        manifest = (
            None  # The API server refuses the creation of the MPIJob too. The status shows this refusal.
        )
    return HandedOver(manifest if manifest is not None and controller_uid(manifest) == job.uid else None)


async def check_served(cluster: Cluster, mpijob: Manifest) -> None:
    """Check that the cluster serves MPIJobs.

    Raises Refused when the cluster does not serve MPIJobs, and ApiError when the check fails.
    """
    if not await cluster.serves_kind(MPIJOB_API_VERSION, MPIJOB_PLURAL):
        raise Refused(ApiError(404, Reason.MPIJOB_NOT_SERVED, NOT_SERVED), mpijob)


@dataclass(frozen=True)
class HandedOver:
    """See `Delegate`."""

    manifest: Manifest | None
    """The MPIJob; None when the job has no MPIJob."""

    @property
    def mpijob(self) -> MpiJob | None:
        """See `Delegate`."""
        return view_mpijob(self.manifest) if self.manifest else None

    def actions(self, seen: Snapshot, decision: Decision) -> list[Action]:
        """See `Delegate`."""
        plan, status, pods, mpijob = seen.plan, decision.status, seen.observed.pods, self.mpijob
        result = ends(pods, decision.pods)
        if (
            self.manifest is not None
            and mpijob is not None
            and ends_mpijob(seen.job, status, mpijob, seen.now)
        ):
            result.append(DeleteMpiJob(self.manifest))
        if decision.expired:
            result.append(ExpireJob())
        if not decision.prepare or mpijob is not None or pods or plan is None or plan.mpijob is None:
            return result
        earlier = [AwaitEarlier(status.attempt)] if status.attempt > 1 else []
        # Create the NetworkPolicy once for each attempt: the request is sent even if the NetworkPolicy exists.
        fence = [CreateOwn(plan.network_policy)] if plan.network_policy else []
        return [*result, *earlier, *config_actions(seen, plan), *fence, CreateMpiJob(plan.mpijob)]

    def look_again(self, status: JobStatus, now: datetime) -> float | None:
        """See `Delegate`."""
        mpijob = self.mpijob
        if status.finished:
            waits = mpijob is not None and not mpijob.completed and not mpijob.deleting
            return ENDING_SECONDS if waits and end_left(status, now) > 0 else None
        if mpijob is None and status.holds(ConditionType.SUSPENDED):
            return None
        going = mpijob is not None and (mpijob.deleting or mpijob.attempt < status.attempt)
        return ENDING_SECONDS if going else LOOK_SECONDS
