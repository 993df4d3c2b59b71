"""One pass over a job: read, plan, evaluate, write the status, act.

The status is written before anything is done that follows from it. A pass that dies anywhere is repaired by the
next one: what counts (attempt, restarts, the end) is stored first, and every action is idempotent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from secrets import token_hex
from typing import Any, TypeVar

from dtj.api.condition_types import ConditionType
from dtj.api.job import Fault, Job, Manifest, read_status
from dtj.api.managed_by import other_manager_of
from dtj.api.names import ssh_secret_name
from dtj.api.reasons import Reason
from dtj.api.status import JobStatus, Phase
from dtj.api.unreadable import AnyJob, read_stored_job
from dtj.cluster.port import ApiError, Cluster
from dtj.plan.horovod import ssh_secret
from dtj.plan.job import plan_job
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
from dtj.reconcile.decision import Decision, Snapshot, decide, looked_at, soonest
from dtj.reconcile.delegation import check_served, find_mpijob
from dtj.reconcile.lately import Lately
from dtj.reconcile.live_reads import Unseen, await_earlier, misses_one
from dtj.reconcile.metrics import Metrics
from dtj.reconcile.patch import merge_patch
from dtj.reconcile.pod_groups import delete_pod_group, ensure_pod_group, not_queued
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.refusal import Refused, Unmade, make, refuse
from dtj.reconcile.slow_start import MOST_AT_ONCE, slow_start
from dtj.reconcile.ssh_keys import new_key_pair
from dtj.reconcile.telling import Untold
from dtj.reconcile.tensorboard import keep
from dtj.reconcile.view import Key, Owned, OwnedDeployment, View, is_delegated
from dtj.status.counts import only_counts
from dtj.status.draft import Evaluation
from dtj.status.events import Happening, happenings
from dtj.status.mpijob import not_taken_up, view_mpijob
from dtj.status.observed import Observed
from dtj.status.overdue import next_due, overdue, told_overdue
from dtj.status.plain import plain
from dtj.status.pods import PodView

_log = logging.getLogger(__name__)
# How often an object that the API server refuses for now (quota, a policy, a name that is taken) is tried again.
_REFUSED_SECONDS = 10.0
# The answer to an object that has not the form of its schema.
_INVALID = 422
_CONFLICT = 409
_CONDITIONS = frozenset(kind.value for kind in ConditionType)
# How soon a cache that is behind is looked at again, should no event come.
_BEHIND_SECONDS = 1.0
# A job with more pods than this is planned and evaluated in a thread, so that the event loop goes on.
_LARGE = 200
# The most requests that follow from one pass. The next pass sends the rest, after other jobs have had their turn.
_MOST_ACTIONS = 500
# The most requests for pods of one job at a time, while other jobs have passes.
_BESIDE_OTHERS = 4
# The pause before a job's next pass, in processor times of the last pass: one job takes a tenth of a core at most.
_REST = 9.0
# The pause before the next pass over a job that has ended: one pass sees the end of several pods.
_OVER_SECONDS = 1.0
T = TypeVar("T")


@dataclass
class _Memory:
    """What the operator remembers of a job; it is right without it too, only slower to say why."""

    uid: str = ""
    read: tuple[object, AnyJob, list[Fault]] | None = None
    """What the job and its faults were read from, without its status, and both."""
    cost: float = 0.0
    """Seconds of processor time of the last pass."""
    over: bool = False
    """Whether the job has ended."""
    ssh_secret: str | None = None
    """Name of the Secret with its ssh key, before the status has it."""
    ssh_secret_made: bool = False
    unmade: bool = False
    """Whether the API server could not make an object in the last pass."""
    refusal: tuple[str, str] | None = None
    invalid: list[Fault] = field(default_factory=list)
    version: str = ""
    """The job's resource version as this pass knows it."""
    written_at: datetime | None = None
    """When its status was written last."""
    written: Manifest | None = None
    """The job as our last write left it, while the cache may not have seen that."""
    stacks_of: str | None = None
    """Since when the job stood still when its stacks were asked for last."""
    echo: str | None = None
    """The version at which our own last write left the job, where a pass over it would decide the same again."""
    overtaken: set[str] = field(default_factory=set)
    """Resource versions that our own writes have replaced since the cache last caught up."""
    ungrouped: bool = False
    """Whether its PodGroup was taken away."""
    no_tensorboard: str | None = None
    """Why the API server would not have the job's TensorBoard."""
    untold: Untold = field(default_factory=Untold)
    lately: Lately = field(default_factory=Lately)
    plain: bool = False
    """Whether the API server refused a status with what pods said: from then on none is written."""
    unsure: tuple[JobStatus, JobStatus] | None = None
    """Status before and after a write of which no answer came: it may have been stored all the same."""


class Reconciler:
    """Brings jobs to what their specs say, one pass at a time."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        progress: ProgressPoller,
        metrics: Metrics,
        clock: Callable[[], datetime],
        plan: Callable[[Job], Plan] = plan_job,
        counts_after: float = 0.0,
        moves: Callable[[Key], None] = lambda _: None,
        at_once: int = MOST_AT_ONCE,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        """plan: what a job without faults needs; another place than a cluster plans otherwise.
        counts_after: seconds after a write of its status for which it waits to be written again where only its pods
        are further: several of them come together.
        moves: told the job of each request that was answered: a pass over a large job may take long.
        at_once: pods of a job that are made, or told to end, at a time.
        crowded: whether other jobs have, or wait for, a pass: a large one then leaves them most of the API server.
        """
        self._plan = plan
        self._counts_after = timedelta(seconds=counts_after)
        self._cluster = cluster
        self._view = view
        self._progress = progress
        self._metrics = metrics
        self._clock = clock
        self._moves = moves
        self._at_once = at_once
        self._crowded = crowded
        self._memory: dict[Key, _Memory] = {}

    async def reconcile(self, key: Key) -> float | None:
        """One pass. Returns seconds until the next one is due although nothing happens, or None.

        Raises ApiError when the API server did not do as it was asked: the pass is to be repeated.
        """
        manifest = self._view.job(key)
        if manifest is None or manifest["metadata"].get("deletionTimestamp"):
            # The API server's garbage collector ends what the job owned.
            self._forget(key)
            return await self._end_strays(key, None)
        strays = await self._end_strays(key, manifest["metadata"]["uid"])
        if other_manager_of(manifest):
            self._forget(key)
            return strays
        again = await self._reconcile(key, manifest)
        untold = self._memory[key].untold.due_in(self._clock())
        return soonest(strays, again, untold)

    def rest(self, key: Key) -> float:
        """Seconds for which a job is to be left alone after its last pass."""
        memory = self._memory.get(key)
        if memory is None:
            return 0.0
        return max(_REST * memory.cost, _OVER_SECONDS if memory.over else 0.0)

    def is_echo(self, key: Key, version: str) -> bool:
        """Whether this version of a job is what its last pass wrote, and says nothing that calls for another pass."""
        memory = self._memory.get(key)
        return memory is not None and memory.echo == version

    async def _end_strays(self, key: Key, uid: str | None) -> float | None:
        """Take away by force what is overdue of jobs of this name that are gone; seconds until more is.

        uid: of the job that has the name now.
        """
        pods = [pod.view for pod in self._view.pods(key) if pod.owner and pod.owner != uid]
        now = self._clock()
        for pod in overdue(pods, now):
            _log.info("%s/%s: %s", *key, told_overdue(pod))
            await self._cluster.delete_pod(key[0], pod.name, pod.uid, force=True)
        return next_due(pods, now)

    async def _reconcile(self, key: Key, manifest: Mapping[str, Any]) -> float | None:
        memory = self._memory.setdefault(key, _Memory())
        if memory.uid != manifest["metadata"]["uid"]:
            memory = self._memory[key] = _Memory(uid=manifest["metadata"]["uid"])
            self._progress.leave(key)  # what an earlier job of that name reported
        if memory.written and manifest["metadata"]["resourceVersion"] in memory.overtaken:
            manifest = memory.written  # the cache has not seen our own last write yet
        else:
            memory.overtaken.clear()
        memory.version = manifest["metadata"]["resourceVersion"]
        begun = time.thread_time()
        job, wrong = _read(memory, manifest)
        delegates = is_delegated(job)
        pods = [
            pod.view
            for pod in self._view.pods(key)
            if pod.owner == job.uid and (delegates or not pod.delegated)
        ]
        memory.cost = time.thread_time() - begun
        # The Secret of a job with pods got its name before.
        unnamed = job.status.ssh_secret is None and not pods and not wrong
        if unnamed:
            memory.ssh_secret = memory.ssh_secret or ssh_secret_name(job.name, token_hex(4))
        named = job.status.model_copy(update={"ssh_secret": memory.ssh_secret}) if unnamed else job.status
        plan = (
            None
            if wrong or not isinstance(job, Job)
            else await self._aside(memory, job, pods, partial(self._plan, replace(job, status=named)))
        )
        names_secret = unnamed and plan is not None and plan.ssh_secret is not None
        if names_secret:
            job = replace(job, status=named)
        now = self._clock()
        self._learn_of_last_write(job, memory, pods, now)
        # What is stored, should this pass break off.
        self._metrics.see(key, job, job.status, pods)
        mpijob = await find_mpijob(self._cluster, job, plan)
        delegate = view_mpijob(mpijob) if mpijob else None
        report = self._progress.report(key, plan.reporter) if plan else None
        evaluation_report = self._progress.report(key, plan.evaluator) if plan and plan.evaluator else None
        observed = Observed(
            pods=pods,
            refusal=memory.refusal or not_taken_up(delegate, now),
            invalid=tuple(memory.invalid),
            progress=report.progress if report else None,
            artifacts=report.artifacts if report else None,
            bottleneck=report.bottleneck if report else None,
            evaluation=evaluation_report.progress if evaluation_report else None,
            answers=self._progress.answers(key, plan.reporter) if plan else None,
            program_ended=report is not None and report.program_ended,
            mpijob=delegate,
        )
        seen = Snapshot(
            observed=observed,
            services=[s for s in self._view.services(key) if s.owner == job.uid],
            configs=[c for c in self._view.configs(key) if c.owner == job.uid],
            boards=[d for d in self._view.deployments(key) if d.owner == job.uid],
            mpijob=mpijob,
            no_tensorboard=memory.no_tensorboard,
            now=now,
        )
        decision = await self._aside(memory, job, pods, partial(decide, job, plan, wrong, seen))
        evaluation, todo = decision.evaluation, decision.todo
        memory.over = evaluation.status.finished
        if (
            plan
            and evaluation.status.attempt > job.status.current_attempt
            and await misses_one(self._cluster, job, plan, {pod.name for pod in pods})
        ):
            return _BEHIND_SECONDS
        todo = memory.lately.without(todo, now)
        if names_secret:
            assert isinstance(job, Job)
            if await self._make_ssh_secret(job, memory, todo):
                todo = [action for action in todo if not isinstance(action, CreateSshSecret)]
            else:
                told = evaluation.status.model_copy(update={"ssh_secret": None})
                evaluation = replace(evaluation, status=told)
                # No pod is made that needs a Secret of which the status does not tell.
                todo = [action for action in todo if not isinstance(action, (CreatePod, Create))]
        soon = self._write_soon(job, plan, memory, evaluation.status, todo, now)
        stored = None if soon else await self._write(key, job, manifest, memory, evaluation.status, now)
        if stored is not None:
            memory.written_at = now
            after = replace(job, status=stored)
            follows = await self._aside(memory, job, pods, partial(self._decided, after, wrong, seen))
            memory.echo = memory.version if follows == replace(decision, evaluation=evaluation) else None
            self._tell(job, memory, job.status, stored, pods, now)
            self._metrics.see(key, job, stored, pods)
        await memory.untold.tell(self._cluster, now)
        self._follow(key, job, plan, observed, evaluation.status)
        self._ask_for_stacks(plan, observed, memory, evaluation.stalled_since)
        if evaluation.status.attempt != job.status.current_attempt:
            return 0.0  # the plan of the new attempt is made in a pass of its own
        again = await self._act(key, job, plan, memory, todo, looked_at(evaluation, soon))
        again = soonest(again, memory.lately.due_in(now))
        if plan is None or not isinstance(job, Job):
            return again
        return await self._keep_tensorboard(job, plan, memory, seen.services, seen.boards, again)

    def _decided(self, job: AnyJob, wrong: list[Fault], seen: Snapshot) -> Decision:
        plan = None if wrong or not isinstance(job, Job) else self._plan(job)
        return decide(job, plan, wrong, seen)

    async def _keep_tensorboard(
        self,
        job: Job,
        plan: Plan,
        memory: _Memory,
        services: Sequence[Owned],
        boards: Sequence[OwnedDeployment],
        again: float | None,
    ) -> float | None:
        """Seconds until the next pass is due: as without it, or sooner."""
        before = memory.no_tensorboard
        try:
            memory.no_tensorboard = await keep(self._cluster, job, plan, services, boards)
        except ApiError as error:
            _log.warning("%s/%s: its TensorBoard: %s", job.namespace, job.name, error)
        else:
            if (before is None) != (memory.no_tensorboard is None):
                return 0.0  # to say so in the status
            if before is None:
                return again
        return soonest(again, _REFUSED_SECONDS)

    async def _aside(
        self,
        memory: _Memory,
        job: AnyJob,
        pods: Sequence[PodView],
        do: Callable[[], T],
    ) -> T:
        """Do it, in a thread where the job is large, and count what it cost. What it reads never changes."""

        def timed() -> tuple[T, float]:
            begun = time.thread_time()
            return do(), time.thread_time() - begun

        roles = job.spec.replica_specs.given() if isinstance(job, Job) else {}
        wanted = sum(role.replicas for role in roles.values())
        result, cost = await asyncio.to_thread(timed) if max(wanted, len(pods)) > _LARGE else timed()
        memory.cost += cost
        return result

    async def _make_ssh_secret(self, job: Job, memory: _Memory, todo: Sequence[Action]) -> bool:
        """Make the Secret whose name the status is about to tell, if the Secret is to be made now.

        Before the status: nobody can know the name of a Secret that is not there, and make it with a key of his own.
        """
        if memory.ssh_secret_made or not any(isinstance(action, CreateSshSecret) for action in todo):
            return memory.ssh_secret_made
        manifest = ssh_secret(job, *new_key_pair())
        try:
            await self._cluster.create(manifest)
        except ApiError as error:
            if error.status == _CONFLICT:
                memory.ssh_secret = None  # somebody has that name: the next pass takes another one
                raise
            with suppress(Refused, Unmade):  # the action meets the same, and tells
                refuse(error, manifest)
            return False
        memory.ssh_secret_made = True
        memory.lately.add(CreateSshSecret(), self._clock())
        return True

    async def _act(
        self,
        key: Key,
        job: AnyJob,
        plan: Plan | None,
        memory: _Memory,
        todo: list[Action],
        evaluation: Evaluation,
    ) -> float | None:
        before = memory.refusal, list(memory.invalid)
        memory.refusal, memory.invalid = None, []
        unmade, memory.unmade = memory.unmade, False

        async def carry_out(action: Action) -> None:
            await self._carry_out(job, plan, memory, action)
            memory.lately.add(action, self._clock())
            self._moves(key)

        try:
            for parallel, some in groupby(todo[:_MOST_ACTIONS], _is_of_a_pod):
                await slow_start(carry_out, list(some), self._share if parallel else lambda: 1)
        except Unseen as unseen:
            _log.info("%s/%s: %s", job.namespace, job.name, unseen)
            evaluation = looked_at(evaluation, _BEHIND_SECONDS)
        except Unmade as error:
            memory.unmade = True
            memory.refusal = error.obstacle if unmade else None
            raise
        except Refused as refused:
            _log.info("%s/%s: %s", job.namespace, job.name, refused)
            if refused.invalid:
                memory.invalid = [Fault(refused.what, refused.why)]
            else:
                memory.refusal = refused.obstacle
        if before != (memory.refusal, memory.invalid):
            # To say so in the status; not at once, for a message that is another one each time.
            return 0.0 if memory.refusal is None or before[0] is None else 1.0
        if memory.refusal is not None:
            return min(_REFUSED_SECONDS, evaluation.look_again or _REFUSED_SECONDS)
        return 0.0 if todo[_MOST_ACTIONS:] else evaluation.look_again

    def _share(self) -> int:
        """How many requests for pods of one job may be under way."""
        return min(self._at_once, _BESIDE_OTHERS) if self._crowded() else self._at_once

    async def _carry_out(self, job: AnyJob, plan: Plan | None, memory: _Memory, action: Action) -> None:
        match action:
            case ExpireJob():
                # At this version only: somebody may just have asked for it to stay.
                await self._cluster.expire_job(job.namespace, job.name, job.uid, memory.version)
                _log.info("%s/%s: deleted by runPolicy.ttlSecondsAfterFinished", job.namespace, job.name)
            case DeletePod(name, uid):
                await self._cluster.delete_pod(job.namespace, name, uid)
            case ForceDeletePod(name, uid, why):
                now = self._clock()
                memory.untold.add(job, Happening("Warning", Reason.POD_FORCE_DELETED, why), now)
                await memory.untold.tell(self._cluster, now)
                await self._cluster.delete_pod(job.namespace, name, uid, force=True)
            case Create(manifest):
                await make(self._cluster, job, manifest)
            case CreatePod(replica):
                assert plan is not None
                made = await make(self._cluster, job, plan.pod(replica))
                if made is not None and (unqueued := not_queued(job, made)) is not None:
                    memory.untold.add(job, unqueued, self._clock())
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
            case CreateSshSecret():
                assert isinstance(job, Job)
                await self._create_own(ssh_secret(job, *new_key_pair()))
                memory.ssh_secret_made = True
            case CreateOwn(manifest):
                await self._create_own(manifest)
            case ReplaceData(manifest):
                await self._cluster.replace_data(manifest)

    async def _create_own(self, manifest: Manifest) -> None:
        try:
            await self._cluster.create(manifest)
        except ApiError as error:
            # Its name carries the job's uid: the one that is there is this job's.
            if error.status != 409 or error.reason != "AlreadyExists":
                refuse(error, manifest)

    def _write_soon(
        self,
        job: AnyJob,
        plan: Plan | None,
        memory: _Memory,
        status: JobStatus,
        todo: Sequence[Action],
        now: datetime,
    ) -> float | None:
        """Seconds for which a status that only counts pods may wait to be written; None: write it now.

        By the counts a pod is missed that went without a trace: those of a group from the start, others when the
        last ones were made, which shows that they were there. A pod that is told to end is counted before.
        """
        if plan is None or plan.all_or_nothing or memory.written_at is None:
            return None
        if not all(isinstance(action, (Create, CreatePod)) for action in todo):
            return None
        left = (memory.written_at + self._counts_after - now).total_seconds()
        return left if left > 0 and only_counts(job.status, status) and job.status != status else None

    async def _write(
        self, key: Key, job: AnyJob, manifest: Any, memory: _Memory, status: JobStatus, now: datetime
    ) -> JobStatus | None:
        """Store a status, if it is another one, and return what is stored."""
        if memory.plain:
            status = plain(status, job.status)
        patch = _status_patch(manifest, status)
        if not patch:
            return None
        try:
            await self._patch(key, job, manifest, memory, status, patch)
        except ApiError as error:
            if error.status != _INVALID or memory.plain:
                raise
            # Nothing that a pod says may keep the rest from being stored.
            memory.plain, status = True, plain(status, job.status)
            self._metrics.refused_statuses.inc()
            message = (
                f"the API server refused the status, which is stored without reports of pods: {error.message}"
            )
            memory.untold.add(job, Happening("Warning", Reason.STATUS_REFUSED, message), now)
            await self._patch(key, job, manifest, memory, status, _status_patch(manifest, status))
        return status

    async def _patch(
        self, key: Key, job: AnyJob, manifest: Any, memory: _Memory, status: JobStatus, patch: Manifest
    ) -> None:
        version = manifest["metadata"]["resourceVersion"]
        # The cache's version too, besides that of our copy: it is what the cache may still show.
        shown = self._view.job(key)
        try:
            memory.written = await self._cluster.patch_status(job.namespace, job.name, version, patch)
        except ApiError as error:
            if error.status == 0 or error.status >= 500:
                memory.unsure = job.status, status
            raise
        memory.unsure = None
        memory.overtaken |= {version, *([shown["metadata"]["resourceVersion"]] if shown else [])}
        memory.version = memory.written["metadata"]["resourceVersion"]
        memory.overtaken.discard(memory.version)

    def _learn_of_last_write(
        self, job: AnyJob, memory: _Memory, pods: Sequence[PodView], now: datetime
    ) -> None:
        """Tell of a status of which we did not learn that it was stored."""
        if memory.unsure is None or job.status == memory.unsure[0]:
            return
        before, wanted = memory.unsure
        memory.unsure = None
        # Compare without timestamps: the stored status may stem from an earlier retry of the same write.
        if happenings(before, job.status) == happenings(before, wanted):
            self._tell(job, memory, before, job.status, pods, now)

    def _tell(
        self,
        job: AnyJob,
        memory: _Memory,
        old: JobStatus,
        new: JobStatus,
        pods: Sequence[PodView],
        now: datetime,
    ) -> None:
        """Events and metrics of what was just stored."""
        self._metrics.count(job, old, new, pods)
        for happening in happenings(old, new):
            memory.untold.add(job, happening, now)

    def _follow(
        self, key: Key, job: AnyJob, plan: Plan | None, observed: Observed, status: JobStatus
    ) -> None:
        trains = status.phase is Phase.RUNNING or (plan and plan.restarts_with and not status.finished)
        if plan is None or not trains:
            self._progress.leave(key)
            return
        # A job is called stalled by what is known of it.
        closely = job.run_policy.stall_timeout_seconds is not None
        self._progress.follow(key, _addresses(observed, {plan.reporter, plan.evaluator}), closely=closely)

    def _ask_for_stacks(
        self, plan: Plan | None, observed: Observed, memory: _Memory, since: str | None
    ) -> None:
        """Ask all ranks of a job that stands still since then what they do, once."""
        if plan is None or since in (None, memory.stacks_of):
            return
        memory.stacks_of = since
        self._progress.ask_for_stacks(_addresses(observed, plan.answering))

    def _forget(self, key: Key) -> None:
        self._memory.pop(key, None)
        self._metrics.jobs.forget(key)
        self._progress.leave(key)


def _status_patch(manifest: Mapping[str, Any], status: JobStatus) -> Manifest:
    """What changes the stored status to this one."""
    stored, new = (
        manifest.get("status") or {},
        status.model_dump(by_alias=True, mode="json", exclude_none=True),
    )
    # A merge patch replaces the whole list: conditions that other controllers set stay.
    new["conditions"] += [told for told in stored.get("conditions") or () if told["type"] not in _CONDITIONS]
    return merge_patch(stored, new)


def _addresses(observed: Observed, names: Set[str | None]) -> dict[str, str]:
    """The addresses of those pods that run, by name."""
    return {pod.name: pod.ip for pod in observed.pods if pod.name in names and pod.running and pod.ip}


def _read(memory: _Memory, manifest: Mapping[str, Any]) -> tuple[AnyJob, list[Fault]]:
    """The job and its faults. A spec is read once: it changes with its generation alone."""
    metadata = manifest["metadata"]
    source = metadata["generation"], metadata.get("labels"), metadata.get("annotations")
    if memory.read is None or memory.read[0] != source:
        memory.read = source, *read_stored_job(manifest)
    _, job, wrong = memory.read
    return replace(job, status=read_status(manifest.get("status") or {})), wrong


def _is_of_a_pod(action: Action) -> bool:
    """Whether it may be done for many pods at a time, in whichever order."""
    return isinstance(action, (CreatePod, DeletePod))
