"""The end of a pass: send the requests, a few at a time, and record the requests that the API server refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import TypeVar

from dtj.api.reasons import Reason
from dtj.api.unreadable import AnyJob
from dtj.cluster.port import Cluster
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
from dtj.reconcile.delegation import check_served
from dtj.reconcile.live_reads import Unseen, await_earlier
from dtj.reconcile.memory import Memory
from dtj.reconcile.pod_groups import delete_pod_group, ensure_pod_group, not_queued
from dtj.reconcile.refusal import Refused, Unmade, create_own, make
from dtj.reconcile.view import Key
from dtj.status.events import Happening

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
        moves: Callable[[Key], None],
        at_once: int = MOST_AT_ONCE,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        """See `Reconciler`."""
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
        except Refused as refused:
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
        return min(self._at_once, _BESIDE_OTHERS) if self._crowded() else self._at_once

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
