"""The end of a pass: send the requests, a few at a time, and record the requests that the API server refuses.

`reconciler` calls `act` with the requests of `delegate`. This module also creates PodGroups. `refusal` interprets
refused requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence, Set
from itertools import groupby
from typing import TypeVar

from dtj.api.identity import LABEL_ATTEMPT
from dtj.api.job import Manifest
from dtj.api.reasons import Reason
from dtj.api.scheduling_rules import KUEUE_QUEUE
from dtj.api.stored_job import AnyJob
from dtj.cluster.interface import ApiError, Cluster
from dtj.plan.model import Plan
from dtj.reconcile.actions import (
    CREATIONS,
    Action,
    AwaitEarlier,
    ControllerAction,
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
    ObjectAction,
    PodAction,
    ReplaceData,
)
from dtj.reconcile.decision import soonest
from dtj.reconcile.delegate import check_served
from dtj.reconcile.memory import Memory
from dtj.reconcile.refusal import CreationRefused, Unmade, create_own, holder, make, refuse
from dtj.reconcile.view import Key, controller_uid, is_of
from dtj.status.events import Happening
from dtj.status.force_deletion import some
from dtj.status.pods import view_pod

# The PodGroup of a job. The operator does not watch PodGroups: most clusters do not serve the kind.

_MANAGED = "kueue.x-k8s.io/managed"


async def ensure_pod_group(cluster: Cluster, job: AnyJob, manifest: Manifest) -> None:
    """Create the PodGroup, or replace one of the job with another spec. Raises CreationRefused and ApiError."""
    try:
        await cluster.create(manifest)
    except ApiError as error:
        if _is_not_served(error):
            gang, served = job.run_policy.scheduling_policy.gang, manifest["apiVersion"]
            missing = (
                f"the cluster does not serve {served}, and runPolicy.schedulingPolicy.gang is {gang}; "
                "the job continues after the scheduler is installed"
            )
            raise CreationRefused(ApiError(404, Reason.SCHEDULER_MISSING, missing), manifest) from None
        if error.status != 409 or error.reason != "AlreadyExists":
            refuse(error, manifest)
            return
        existing = await cluster.get(manifest)
        if existing is None:
            return  # The PodGroup was deleted after the creation failed. The next pass creates the PodGroup.
        if controller_uid(existing) != job.uid:
            raise CreationRefused(ApiError(409, Reason.NAME_TAKEN, holder(existing, job)), manifest) from None
        spec = existing.get("spec") or {}
        if any(spec.get(key) != value for key, value in manifest["spec"].items()):
            await cluster.delete(manifest, existing["metadata"]["uid"])
            await cluster.create(manifest)


async def delete_pod_group(cluster: Cluster, job: AnyJob, manifest: Manifest) -> None:
    """Delete the job's PodGroup, if the PodGroup exists. Raises ApiError."""
    existing = await cluster.get(manifest)
    if existing is not None and controller_uid(existing) == job.uid:
        await cluster.delete(manifest, existing["metadata"]["uid"])


def not_queued(job: AnyJob, pod: Manifest) -> Happening | None:
    """Return a warning for a pod that names a queue of Kueue and that Kueue does not manage."""
    labels = pod["metadata"].get("labels") or {}
    if KUEUE_QUEUE not in labels or labels.get(_MANAGED) == "true":
        return None
    return Happening(
        "Warning",
        Reason.NOT_QUEUED,
        f"Kueue ignores the pods of attempt {labels[LABEL_ATTEMPT]}, so that they run without its quota: is Kueue "
        f"installed, and is its pod integration on for namespace {job.namespace}?",
    )


def _is_not_served(error: ApiError) -> bool:
    """Return whether a 404 means that the API server does not serve the kind. Otherwise the reason is NotFound."""
    return error.status == 404 and error.reason != "NotFound"


# Lists of pods from the API server: a pod that the cache does not have may still exist.
#
# Each restart costs one or two such lists, however many pods the job has. A job without restarts costs none.


class Unseen(Exception):
    """A pod exists that the cache misses, and the pass must wait until this pod has ended."""


async def misses_one(cluster: Cluster, job: AnyJob, plan: Plan, seen: Set[str]) -> bool:
    """Return whether a pod of the plan exists that the cache misses. Such a pod is not lost: its attempt goes on.

    seen: names of the pods in the cache. The cache misses a pod, for example, when it has the status that another
    replica of the operator wrote, and does not have that replica's pods yet.
    """
    absent = plan.shape.attempts.keys() - seen
    if not absent:
        return False
    return any(
        pod["metadata"]["name"] in absent and is_of(pod, job) and not pod["metadata"].get("deletionTimestamp")
        for pod in await cluster.pods_of(job.namespace, job.name)
    )


async def await_earlier(cluster: Cluster, job: AnyJob, attempt: int) -> None:
    """Check that no pod of an earlier attempt exists: two attempts never run at once.

    List all pods of the job: an earlier attempt may have had more pods than the plan has now.

    Raises Unseen while a pod of an earlier attempt exists.
    """
    pods = [view_pod(pod) for pod in await cluster.pods_of(job.namespace, job.name) if is_of(pod, job)]
    names = sorted(pod.name for pod in pods if pod.attempt < attempt)
    if names:
        raise Unseen(
            f"attempt {attempt} waits for the end of {some(names)}, left over from an earlier attempt"
        )


_log = logging.getLogger(__name__)
BEHIND_SECONDS = 1.0
"""Seconds until the next pass when the cache is behind and no event causes an earlier pass."""
# One pass sends at most this many requests. The next pass sends the rest, after passes over other jobs.
_MOST_ACTIONS = 500
# While other jobs have passes, at most this many requests for pods of one job run at a time.
_BESIDE_OTHERS = 4
MOST_AT_ONCE = 16
"""The most pods of a job that the executor creates or deletes at a time."""
T = TypeVar("T")


class Executor:
    """Carries out the actions of passes."""

    def __init__(
        self,
        cluster: Cluster,
        moves: Callable[[Key], None] | None = None,
        at_once: int = MOST_AT_ONCE,
        crowded: Callable[[], bool] | None = None,
    ) -> None:
        """Store the settings. `Reconciler.__init__` documents the parameters."""
        self._cluster = cluster
        self._moves = moves
        self._at_once = at_once
        self._crowded = crowded

    async def act(
        self, job: AnyJob, plan: Plan | None, memory: Memory, todo: list[Action], look_again: float | None
    ) -> float | None:
        """Carry out the actions in order. Returns seconds until the next pass is due; raises ApiError.

        look_again: seconds until the next pass is due if the API server refuses nothing.
        """
        refusals = memory.refusals
        tries = any(isinstance(action, CREATIONS) for action in todo)
        before = (
            refusals.begin()
            if tries or not refusals.tries.due_in()
            else (refusals.obstacle, refusals.invalid)
        )

        async def carry_out(action: Action) -> None:
            await self._carry_out(job, plan, memory, action)
            memory.expectations.add(action)
            if self._moves is not None:
                self._moves((job.namespace, job.name))

        try:
            for parallel, some in groupby(todo[:_MOST_ACTIONS], _is_of_a_pod):
                await slow_start(carry_out, list(some), self._share if parallel else lambda: 1)
        except Unseen as unseen:
            _log.info("%s/%s: %s", job.namespace, job.name, unseen)
            look_again = min(BEHIND_SECONDS, BEHIND_SECONDS if look_again is None else look_again)
        except Unmade as error:
            refusals.unmade(error)
            if refusals.obstacle is None:
                raise
            _log.info("%s/%s: %s", job.namespace, job.name, error)
        except CreationRefused as refused:
            _log.info("%s/%s: %s", job.namespace, job.name, refused)
            refusals.refused(refused, before[0])
        else:
            if tries:
                refusals.tries.reset()
        if before != (refusals.obstacle, refusals.invalid):
            return 0.0  # The next pass shows the change in the status.
        if refusals.obstacle is not None or refusals.invalid:
            return soonest(refusals.tries.due_in(), look_again)
        return 0.0 if todo[_MOST_ACTIONS:] else look_again

    def _share(self) -> int:
        """Return how many requests for pods of one job may run at a time."""
        crowded = self._crowded is not None and self._crowded()
        return min(self._at_once, _BESIDE_OTHERS) if crowded else self._at_once

    async def _carry_out(self, job: AnyJob, plan: Plan | None, memory: Memory, action: Action) -> None:
        match action:
            case CreatePod() | DeletePod() | ForceDeletePod():
                await self._on_pod(job, plan, memory, action)
            case AwaitEarlier() | EnsurePodGroup() | DeletePodGroup() | CreateMpiJob() | DeleteMpiJob():
                await self._with_controller(job, memory, action)
            case _:
                await self._on_object(job, memory, action)

    async def _on_pod(self, job: AnyJob, plan: Plan | None, memory: Memory, action: PodAction) -> None:
        match action:
            case CreatePod(replica):
                assert plan is not None
                created = await make(self._cluster, job, plan.pod(replica))
                if created is not None and (unqueued := not_queued(job, created)) is not None:
                    memory.recorder.record(job, unqueued)
            case DeletePod(name, uid):
                await self._cluster.delete_pod(job.namespace, name, uid)
            case ForceDeletePod(name, uid, why):
                memory.recorder.record(job, Happening("Warning", Reason.POD_FORCE_DELETED, why))
                await memory.recorder.flush(self._cluster)
                await self._cluster.delete_pod(job.namespace, name, uid, force=True)

    async def _on_object(self, job: AnyJob, memory: Memory, action: ObjectAction) -> None:
        match action:
            case Create(manifest):
                await make(self._cluster, job, manifest)
            case CreateOwn(manifest):
                await create_own(self._cluster, manifest)
            case CreateSshSecret():
                await memory.ssh_secret.make(self._cluster, job)
            case ReplaceData(manifest):
                await self._cluster.replace_data(manifest)
            case ExpireJob():
                # Delete only this version of the job: a user may just have changed the job to keep it.
                version = memory.stored.version
                await self._cluster.expire_job(job.namespace, job.name, job.uid, version)
                _log.info("%s/%s: deleted by runPolicy.ttlSecondsAfterFinished", job.namespace, job.name)

    async def _with_controller(self, job: AnyJob, memory: Memory, action: ControllerAction) -> None:
        match action:
            case AwaitEarlier(attempt):
                await await_earlier(self._cluster, job, attempt)
            case EnsurePodGroup(manifest):
                memory.ungrouped = False
                await ensure_pod_group(self._cluster, job, manifest)
            case DeletePodGroup(manifest):
                if not memory.ungrouped:
                    await delete_pod_group(self._cluster, job, manifest)
                memory.ungrouped = True
            case CreateMpiJob(manifest):
                await check_served(self._cluster, manifest)
                await make(self._cluster, job, manifest)
            case DeleteMpiJob(manifest):
                await self._cluster.delete_tree(manifest)


def _is_of_a_pod(action: Action) -> bool:
    """Return whether the executor may carry out such actions in parallel and in any order."""
    return isinstance(action, (CreatePod, DeletePod))


async def slow_start(
    do: Callable[[T], Awaitable[None]], items: Sequence[T], most: Callable[[], int] = lambda: MOST_AT_ONCE
) -> None:
    """Call `do` for 1, 2, 4, … items at a time, as client-go's slowStartBatch.

    After a batch with a failure, no other batch begins, so that a quota does not refuse thousands of requests.

    most: returns the largest size of a batch; called before each batch.

    Raises the exception of the first item that failed in the batch.
    """
    begin, size = 0, 1
    while begin < len(items):
        size = min(size, most())
        batch = items[begin : begin + size]
        if len(batch) == 1:
            await do(batch[0])
        else:
            results = await asyncio.gather(*map(do, batch), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        begin, size = begin + size, 2 * size
