"""The requests that follow from a decision. They differ if mpi-operator, not this operator, creates the job's pods.

`decision` asks for the requests, and `executor` sends them. Only the read of an MPIJob is I/O. The influence of an
MPIJob on the status is in `status.mpijob`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dtj.api.job import Manifest
from dtj.api.mpijob import MPIJOB_API_VERSION, MPIJOB_PLURAL
from dtj.api.reasons import Reason
from dtj.api.status import ConditionType, JobStatus
from dtj.api.stored_job import AnyJob
from dtj.cluster.interface import ApiError, Cluster
from dtj.plan.model import Plan
from dtj.reconcile.actions import (
    Action,
    AwaitEarlier,
    Create,
    CreateMpiJob,
    CreateOwn,
    CreatePod,
    CreateSshSecret,
    DeleteMpiJob,
    DeletePod,
    DeletePodGroup,
    EnsurePodGroup,
    ExpireJob,
    ForceDeletePod,
    ReplaceData,
)
from dtj.reconcile.refusal import CreationRefused
from dtj.reconcile.snapshot import Delegate, Snapshot
from dtj.reconcile.view import controller_uid, data_digest
from dtj.status.decision import Decision, PodChanges
from dtj.status.force_deletion import describe_force_deletion
from dtj.status.mpijob import end_left, ends_mpijob
from dtj.status.observed import MpiJob, view_mpijob
from dtj.status.pods import PodView


class Native:
    """See `Delegate`."""

    mpijob: MpiJob | None = None

    def look_again(self, _status: JobStatus, _now: datetime) -> float | None:
        """Return None: each change of a pod is an event that causes a pass."""
        return None

    def actions(self, seen: Snapshot, decision: Decision) -> list[Action]:
        """See `Delegate`.

        The snapshot has no objects of other owners. If another owner's object has the name of an object of the plan,
        the API server refuses the creation with 409.
        """
        plan, status = seen.plan, decision.status
        result = ends(seen.observed.pods, decision.pods)
        finished = status.conditions.finished
        rests = finished or ConditionType.SUSPENDED in status.conditions.holding
        if rests and plan is not None and plan.pod_group is not None:
            result.append(DeletePodGroup(plan.pod_group))
        if finished:
            return [*result, ExpireJob()] if decision.expired else result
        if plan is None:
            return result
        make = decision.pods.make
        created = (
            [CreatePod(replica) for replica in plan.shape.replicas if replica.name in make] if make else []
        )
        if not decision.prepare:
            return [*result, *created]
        return [*result, *_prepared(seen, plan, status.attempt, begins=bool(created)), *created]


def ends(pods: Sequence[PodView], decided: PodChanges) -> list[Action]:
    """Return the deletions of the pods that must end. The forced deletions come first."""
    if not (decided.force or decided.end):
        return []
    return [
        *(
            ForceDeletePod(pod.name, pod.uid, describe_force_deletion(pod))
            for pod in pods
            if pod.name in decided.force
        ),
        *(DeletePod(pod.name, pod.uid) for pod in pods if pod.name in decided.end),
    ]


def config_actions(seen: Snapshot, plan: Plan) -> list[Action]:
    """Return the action that creates or updates the ConfigMap, if the ConfigMap differs from the plan."""
    name = plan.config["metadata"]["name"]
    known = next((config for config in seen.configs if config.name == name), None)
    if known is None:
        return [Create(plan.config)]
    # Running pods keep the configuration of their start: a changed spec applies from the next attempt on.
    if seen.observed.pods or known.digest == data_digest(plan.config["data"]):
        return []
    return [ReplaceData(plan.config)]


def _prepared(seen: Snapshot, plan: Plan, attempt: int, *, begins: bool) -> list[Action]:
    """Return the actions that create what the attempt's pods need. begins: whether this pass creates pods."""
    pods, result = seen.observed.pods, list[Action]()
    if not any(service.name == plan.service["metadata"]["name"] for service in seen.services):
        result.append(Create(plan.service))
    present = any(pod.attempt == plan.shape.attempts.get(pod.name) for pod in pods)
    if plan.shape.restarts_with is None and attempt > 1 and not present:
        result.append(AwaitEarlier(attempt))
    if begins and not any(pod.attempt == attempt for pod in pods):
        # Create the NetworkPolicy and the Secret again for each attempt: a user may have deleted them, and the
        # operator has no permission to read them.
        result += [CreateOwn(plan.network_policy)] if plan.network_policy else []
        result += [CreateSshSecret()] if plan.ssh_secret else []
    result += config_actions(seen, plan)
    if begins and plan.pod_group is not None:
        result.append(EnsurePodGroup(plan.pod_group))
    return result


# A job that the operator hands over as an MPIJob: the read of the MPIJob, and the requests that follow.
#
# The operator creates and deletes the MPIJob and never changes an MPIJob: mpi-operator writes the status of the
# MPIJob, and Kueue writes the field `suspend`. Each pass reads the MPIJob by name. The operator does not watch
# MPIJobs, so that an administrator can install or delete the CRD of MPIJobs while the operator runs.

LOOK_SECONDS = 10.0
"""Seconds between two reads of an MPIJob while its pods do not change."""
ENDING_SECONDS = 2.0
"""Seconds between two reads of an MPIJob that is being deleted."""

NOT_SERVED = (
    f"the cluster does not serve {MPIJOB_PLURAL} of {MPIJOB_API_VERSION} (v1 belongs to training-operator): "
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
    return ByMpiOperator(manifest if manifest is not None and controller_uid(manifest) == job.uid else None)


async def check_served(cluster: Cluster, mpijob: Manifest) -> None:
    """Check that the cluster serves MPIJobs.

    Raises CreationRefused when the cluster does not serve MPIJobs, and ApiError when the check fails.
    """
    if not await cluster.serves_kind(MPIJOB_API_VERSION, MPIJOB_PLURAL):
        raise CreationRefused(ApiError(404, Reason.MPIJOB_NOT_SERVED, NOT_SERVED), mpijob)


@dataclass(frozen=True)
class ByMpiOperator:
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
        if status.conditions.finished:
            waits = mpijob is not None and not mpijob.completed and not mpijob.deleting
            return ENDING_SECONDS if waits and end_left(status, now) > 0 else None
        if mpijob is None and ConditionType.SUSPENDED in status.conditions.holding:
            return None
        going = mpijob is not None and (mpijob.deleting or mpijob.attempt < status.attempt)
        return ENDING_SECONDS if going else LOOK_SECONDS
