"""A job that is handed over as an MPIJob: how that is found, and which requests bring it to what the status says.

The operator makes and deletes the MPIJob, and never changes one: mpi-operator has its status, Kueue its `suspend`.
It is asked for by name in each pass rather than watched, so that its CRD may come and go while the operator runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dtj.api.condition_types import ConditionType
from dtj.api.job import Manifest
from dtj.api.mpijob import MPIJOB_API_VERSION, MPIJOB_PLURAL
from dtj.api.reasons import Reason
from dtj.api.spec import CleanPodPolicy
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
    DeletePod,
    ExpireJob,
)
from dtj.reconcile.native import Native, clean_up, config_actions, to_be_forced
from dtj.reconcile.refusal import Refused
from dtj.reconcile.snapshot import Delegate, Snapshot
from dtj.reconcile.view import controller_uid
from dtj.status.cleaning import is_stopped
from dtj.status.delegated import with_launcher
from dtj.status.draft import Evaluation
from dtj.status.mpijob import MpiJob, view_mpijob
from dtj.status.observed import Expected
from dtj.status.pods import PodView
from dtj.status.suspension import is_suspending
from dtj.status.times import seconds_since

LOOK_SECONDS = 10.0
"""How often an MPIJob is looked at while its pods say nothing new."""
ENDING_SECONDS = 2.0
"""How often one that is to go is looked for."""
END_SECONDS = 60.0
"""How long mpi-operator has, after the job's end, to end its MPIJob too and to clean up."""

NOT_SERVED = (
    f"the cluster does not serve {MPIJOB_PLURAL} of {MPIJOB_API_VERSION} (those of v1 are training-operator's): "
    "install Kubeflow's mpi-operator, 0.5 or newer, or use spec.horovod.launcher: Native"
)


async def find_delegate(cluster: Cluster, job: AnyJob, plan: Plan | None) -> Delegate:
    """Who creates the pods of this plan, asked of the API server where that is not this operator. Raises ApiError."""
    if plan is None or plan.mpijob is None:
        return Native()
    try:
        manifest = await cluster.get(plan.mpijob)
    except ApiError as error:
        if error.status != 403:
            raise
        manifest = None  # creating it is refused too, which the status says
    return HandedOver(manifest if manifest is not None and controller_uid(manifest) == job.uid else None)


async def check_served(cluster: Cluster, mpijob: Manifest) -> None:
    """Raises Refused where the cluster has no such objects, and ApiError where that is not known."""
    if not await cluster.serves_kind(MPIJOB_API_VERSION, MPIJOB_PLURAL):
        raise Refused(ApiError(404, Reason.MPIJOB_NOT_SERVED, NOT_SERVED), mpijob)


@dataclass(frozen=True)
class HandedOver:
    """See `Delegate`."""

    manifest: Manifest | None
    """The MPIJob."""

    @property
    def mpijob(self) -> MpiJob | None:
        """See `Delegate`."""
        return view_mpijob(self.manifest) if self.manifest else None

    def expected(self, expected: Expected, pods: Sequence[PodView], attempt: int) -> Expected:
        """A Job of mpi-operator's names the launcher's pod."""
        return with_launcher(expected, pods, attempt)

    def actions(self, seen: Snapshot, plan: Plan | None, decision: Evaluation) -> list[Action]:
        """See `Delegate`."""
        job, status, pods, mpijob = seen.job, decision.status, seen.observed.pods, self.mpijob
        forced = to_be_forced(decision, pods)
        if status.finished:
            expired: list[Action] = [ExpireJob()] if decision.expired else []
            return [*forced, *self._clean_up(job, decision, pods, seen.now), *expired]
        if self.manifest is not None and mpijob is not None:
            stops = job.run_policy.suspend or is_suspending(status)
            over = not mpijob.deleting and (mpijob.attempt < status.attempt or stops)
            return [*forced, *([DeleteMpiJob(self.manifest)] if over else [])]
        if pods:
            # Its MPIJob was deleted, and they were to stay: nobody else ends them.
            left = [pod for pod in pods if pod.attempt < status.attempt and not pod.deleting]
            return [*forced, *(DeletePod(pod.name, pod.uid) for pod in left)]
        if decision.hold or plan is None or plan.mpijob is None:
            return forced
        known = {config.name: config for config in seen.configs}
        earlier = [AwaitEarlier(status.attempt)] if status.attempt > 1 else []
        # Once for each attempt: one that is there costs a request.
        fence = [CreateOwn(plan.network_policy)] if plan.network_policy else []
        return [*forced, *earlier, *config_actions(plan, known, pods), *fence, CreateMpiJob(plan.mpijob)]

    def _clean_up(
        self, job: AnyJob, decision: Evaluation, pods: Sequence[PodView], now: datetime
    ) -> list[Action]:
        """What cleanPodPolicy asks for; mpi-operator makes no pod anew once it is done with the MPIJob."""
        status, policy, mpijob = decision.status, job.run_policy.clean_pod_policy, self.mpijob
        if self.manifest is None or mpijob is None:
            return clean_up(job, decision, pods)
        if mpijob.deleting:
            return []
        if policy is CleanPodPolicy.ALL or is_stopped(status):
            return [DeleteMpiJob(self.manifest)]
        if mpijob.completed:
            return clean_up(job, decision, pods)
        # Without an end of its own mpi-operator would make pods anew.
        lingers = policy is not CleanPodPolicy.NONE and _end_left(status, now) <= 0
        return [DeleteMpiJob(self.manifest)] if lingers else []

    def look_again(self, status: JobStatus, now: datetime) -> float | None:
        """See `Delegate`."""
        mpijob = self.mpijob
        if status.finished:
            ends = mpijob is not None and not mpijob.completed and not mpijob.deleting
            return ENDING_SECONDS if ends and _end_left(status, now) > 0 else None
        if mpijob is None and status.holds(ConditionType.SUSPENDED):
            return None
        going = mpijob is not None and (mpijob.deleting or mpijob.attempt < status.attempt)
        return ENDING_SECONDS if going else LOOK_SECONDS


def _end_left(status: JobStatus, now: datetime) -> float:
    """Seconds that mpi-operator still has to end the MPIJob of a job that has ended."""
    return END_SECONDS - seconds_since(status.completion_time, now) if status.completion_time else 0.0
