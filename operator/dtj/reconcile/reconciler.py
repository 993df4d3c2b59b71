"""One pass over a job: observe, decide, store, act. `controller` calls `reconcile`; `decision` has the decisions.

A pass stores the status before it carries out the actions that follow from the status. If a pass breaks off, the next
pass completes the work: the status has the attempt, the restarts and the end of the job, and every action is
idempotent. The write of a status is an event like any other, and causes the next pass.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from dtj.api.job import Fault, Job
from dtj.api.reasons import Reason
from dtj.api.status import JobStatus, Phase
from dtj.api.stored_job import AnyJob
from dtj.cluster.interface import ApiError, Cluster
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj.reconcile.actions import Action, Create, CreatePod, CreateSshSecret
from dtj.reconcile.boot_clock import BootClock, boot_clock
from dtj.reconcile.decision import Decided, decide, soonest
from dtj.reconcile.delegate import find_delegate
from dtj.reconcile.executor import BEHIND_SECONDS, MOST_AT_ONCE, Executor, misses_one
from dtj.reconcile.kept_job import managed_elsewhere
from dtj.reconcile.memory import Memory
from dtj.reconcile.metrics import OperatorMetrics
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.record import RecordKeeper
from dtj.reconcile.snapshot import Snapshot, size
from dtj.reconcile.tensorboard import keep, wanted
from dtj.reconcile.view import Key, View, is_delegated
from dtj.status.events import Happening, happenings
from dtj.status.force_deletion import describe_force_deletion, next_force_deletion, pods_to_force_delete
from dtj.status.observed import Observed, ProgressReport, not_taken_up

# The beginning of a pass: a snapshot of a job from caches, reports and, for an MPIJob, the API server.


class Observer:
    """Takes snapshots of jobs, and chooses the pods that are asked for reports."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        progress: ProgressPoller,
        clock: BootClock,
        plan: Callable[[Job], Plan],
        records: bool = False,
    ) -> None:
        """records: whether the operator makes record pods."""
        self._cluster = cluster
        self._view = view
        self._progress = progress
        self._clock = clock
        self._plan = plan
        self._records = records

    async def observe(self, key: Key, memory: Memory, manifest: Mapping[str, Any]) -> Snapshot:
        """Take a snapshot of a job. manifest: the job as it is stored. Raises ApiError."""
        memory.cost.begin()
        job, faults = await memory.read(manifest)
        begun = time.thread_time()
        pods = memory.own(self._view.pods(key), delegated=is_delegated(job))
        memory.cost.seconds += time.thread_time() - begun
        # Choose a name for the ssh Secret only before the job has pods: the status must name the Secret before the
        # pods are created.
        unnamed = job.status.ssh_secret is None and not pods and not faults
        named = self._named(memory, job) if unnamed else job
        plan = await memory.cost.count(partial(self._planned, named, faults), size(job, pods))
        names_secret = unnamed and plan is not None and plan.ssh_secret is not None
        if names_secret:
            job = named
        now = self._clock.now()
        delegate = await find_delegate(self._cluster, job, plan)
        return Snapshot(
            job=job,
            faults=faults,
            plan=plan,
            observed=replace(
                self._reported(key, plan),
                pods=pods,
                refusal=memory.refusals.obstacle or not_taken_up(delegate.mpijob, now),
                invalid=memory.refusals.invalid,
                mpijob=delegate.mpijob,
            ),
            services=[service for service in self._view.services(key) if service.owner == job.uid],
            configs=[config for config in self._view.configs(key) if config.owner == job.uid],
            boards=[board for board in self._view.deployments(key) if board.owner == job.uid],
            delegate=delegate,
            no_tensorboard=memory.no_tensorboard,
            now=now,
            records=[each.pod for each in self._view.records(key) if each.owner == job.uid]
            if self._records
            else None,
            no_record=memory.no_record,
            names_secret=names_secret,
        )

    def follow(self, key: Key, seen: Snapshot, status: JobStatus) -> None:
        """Ask the reporter and the evaluator of a job for reports while the job trains, and no other pod."""
        plan = seen.plan
        trains = status.phase is Phase.RUNNING or (
            plan and plan.shape.restarts_with and not status.conditions.finished
        )
        if plan is None or not trains:
            self._progress.leave(key)
            return
        # The check for a stalled job needs recent reports.
        closely = seen.job.run_policy.stall_timeout_seconds is not None
        self._progress.follow(
            key, addresses(seen, {plan.shape.reporter, plan.shape.evaluator}), closely=closely
        )

    def _planned(self, job: AnyJob, faults: Sequence[Fault]) -> Plan | None:
        return self._plan(job) if isinstance(job, Job) and not faults else None

    def _named(self, memory: Memory, job: AnyJob) -> AnyJob:
        name = memory.ssh_secret.name(job)
        return replace(job, status=job.status.model_copy(update={"ssh_secret": name}))

    def _reported(self, key: Key, plan: Plan | None) -> Observed:
        """Return the reports of the plan's pods."""
        if plan is None:
            return Observed()
        report = self._progress.report(key, plan.shape.reporter) or ProgressReport()
        evaluation = self._progress.report(key, plan.shape.evaluator) if plan.shape.evaluator else None
        return Observed(
            progress=report.progress,
            artifacts=report.artifacts,
            bottleneck=report.bottleneck,
            checkpoint_held_up=report.checkpoint_held_up,
            artifacts_incomplete=report.artifacts_incomplete,
            evaluation=evaluation.progress if evaluation else None,
            answers=self._progress.answers(key, plan.shape.reporter),
            program_ended=report.program_ended,
            utilisation=report.utilisation,
            pod_checkpoint=report.pod_checkpoint,
            in_place=report.in_place,
        )


def addresses(seen: Snapshot, names: Set[str | None]) -> dict[str, str]:
    """Return the addresses of those pods of these names that run, by name."""
    named = seen.observed.pods.named
    pods = [named[name] for name in names if name is not None and name in named]
    return {pod.name: pod.ip for pod in pods if pod.running and pod.ip}


_log = logging.getLogger(__name__)
# The pause before a job's next pass, as a multiple of the last pass's processor time. One job thus uses at most a
# tenth of a core.
_REST = 9.0
# The pause before the next pass over a job that has ended. One pass then sees the end of several pods.
_OVER_SECONDS = 1.0
# The largest decoded spec, in bytes, that is kept from one pass to the next, and the limit for all specs together. A
# usual spec takes 10 kB.
_LARGE_BYTES = 64_000
_MOST_BYTES = 32_000_000


class Reconciler:
    """Brings jobs to the state that their specs describe, one pass at a time."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        progress: ProgressPoller,
        metrics: OperatorMetrics,
        now: Callable[[], datetime],
        plan: Callable[[Job], Plan] = plan_job,
        elapsed: Callable[[], float] = boot_clock,
        counts_after: float = 0.0,
        moves: Callable[[Key], None] | None = None,
        at_once: int = MOST_AT_ONCE,
        crowded: Callable[[], bool] | None = None,
        host_paths: Sequence[str] | None = None,
        recorder: RecordKeeper | None = None,
    ) -> None:
        """now: returns the time of the API server.
        plan: plans a job without faults. `dtj run` plans jobs differently from a cluster.
        elapsed: returns seconds of a monotonic clock, for waits within the process.
        counts_after: seconds after a write of a status in which a status with other counts of pods alone waits, so
        that one write has the changes of several pods.
        moves: called with the key of a job after each answered request: a pass over a large job may take long.
        at_once: the most pods of a job that the executor creates or deletes at a time.
        crowded: returns whether other jobs have, or wait for, a pass. `at_once` is then smaller.
        host_paths: folders of nodes below which jobs may cache data; None: any.
        recorder: makes record pods; None: the ends of jobs are not recorded, except by their own pods.
        """
        self._cluster = cluster
        self._view = view
        self._progress = progress
        self._metrics = metrics
        self._clock = BootClock(now, elapsed)
        self._counts_after = counts_after
        self._host_paths = host_paths
        self._recorder = recorder
        self._observer = Observer(cluster, view, progress, self._clock, plan, records=recorder is not None)
        self._executor = Executor(cluster, moves, at_once, crowded)
        self._memory: dict[Key, Memory] = {}
        self._held: OrderedDict[Key, int] = OrderedDict()
        """The bytes of each decoded spec that is kept, the spec with the oldest pass first."""
        self._held_bytes = 0

    async def reconcile(self, key: Key) -> float | None:
        """Run one pass. Returns seconds until the next pass is due without an event, or None when no pass is due.

        Raises ApiError when a request failed. The caller must repeat the pass then.
        """
        manifest = self._view.job(key)
        if manifest is None or manifest["metadata"].get("deletionTimestamp"):
            # The garbage collector deletes the objects that the job owned.
            self._forget(key)
            return await self._end_strays(key, None)
        strays = await self._end_strays(key, manifest["metadata"]["uid"])
        if managed_elsewhere(manifest):
            self._forget(key)
            return strays
        try:
            again = await self._pass(key, manifest)
        finally:
            self._shed(key, self._memory[key])
        return soonest(strays, again, self._memory[key].recorder.due_in())

    def rest(self, key: Key) -> float:
        """Return the seconds after a job's last pass in which no other pass may begin."""
        memory = self._memory.get(key)
        if memory is None:
            return 0.0
        return max(_REST * memory.cost.seconds, _OVER_SECONDS if memory.over else 0.0)

    async def _end_strays(self, key: Key, uid: str | None) -> float | None:
        """Force-delete the pods of deleted jobs of this name that did not end in time.

        Returns the seconds until the next force deletion, or None if none is due.

        uid: the uid of the job that has the name now; None when no job has the name.
        """
        pods = [pod.view for pod in self._view.pods(key) if pod.owner and pod.owner != uid]
        if not pods:
            return None
        now = self._clock.now()
        for pod in pods_to_force_delete(pods, now):
            _log.info("%s/%s: %s", *key, describe_force_deletion(pod))
            await self._cluster.delete_pod(key[0], pod.name, pod.uid, force=True)
        return next_force_deletion(pods, now)

    async def _pass(self, key: Key, manifest: Mapping[str, Any]) -> float | None:
        # Observe: take a snapshot of the job.
        memory = self._remembered(key, manifest["metadata"]["uid"])
        seen = await self._observer.observe(key, memory, memory.stored.latest(manifest))
        self._catch_up(memory, seen)
        # Decide: compute the status and the requests. A cache that is behind must not begin a new attempt.
        decided = await memory.cost.count(partial(decide, seen), size(seen.job, seen.observed.pods))
        memory.over = decided.decision.status.conditions.finished
        if await self._is_cache_behind(seen, decided):
            return BEHIND_SECONDS
        # Leave out requests that an earlier pass has sent and whose effect the cache does not show yet, and requests
        # that the API server refused a short time ago.
        attempt = seen.job.attempt
        todo = memory.expectations.without(decided.todo, attempt)
        todo = memory.refusals.without(todo, (seen.job.generation, attempt))
        if seen.names_secret:
            decided, todo = await self._name_secret(memory, seen, decided, todo)
        # Store the status, unless only its counts of pods are new and can wait.
        wait = self._wait_to_store(memory, seen, decided, todo)
        stored = seen.job.status if wait is not None else await self._store(memory, seen, decided)
        self._metrics.see(key, seen.job, stored, seen.observed)
        await memory.recorder.flush(self._cluster)
        # Choose the pods that are asked for reports, and carry out the actions.
        self._observer.follow(key, seen, decided.decision.status)
        self._ask_for_stacks(memory, seen, decided.decision.stalled_since)
        if decided.decision.status.attempt != attempt:
            return 0.0  # The next pass plans the new attempt.
        look_again = soonest(decided.decision.look_again, wait)
        again = await self._executor.act(seen.job, seen.plan, memory, todo, look_again)
        sent, board = memory.expectations.due_in(), await self._keep_tensorboard(memory, seen)
        if memory.over and not todo:
            memory.shed()
        return soonest(again, sent, board, await self._keep_record(memory, seen, decided))

    def _shed(self, key: Key, memory: Memory) -> None:
        """Drop the decoded spec of this job if it is large, and of jobs whose last pass is long ago.

        The garbage collector walks through all decoded specs, and blocks the event loop meanwhile.
        """
        if memory.held > _LARGE_BYTES:
            memory.shed()
        self._held_bytes += memory.held - self._held.pop(key, 0)
        self._held[key] = memory.held
        while self._held_bytes > _MOST_BYTES:
            oldest, held = self._held.popitem(last=False)
            self._held_bytes -= held
            self._memory[oldest].shed()

    def _remembered(self, key: Key, uid: str) -> Memory:
        """Return the memory of this job. Drop the memory of an earlier job of the same name."""
        memory = self._memory.get(key)
        if memory is None or memory.uid != uid:
            memory = Memory(uid, self._clock, self._counts_after, self._host_paths)
            self._memory[key] = memory
            self._progress.leave(key)
        return memory

    def _catch_up(self, memory: Memory, seen: Snapshot) -> None:
        """Record the changes of a status that was stored by an earlier write without an answer.

        This comes first in a pass, so that the events are recorded even if the pass ends by an error.
        """
        before = memory.stored.confirmed(seen.job.status)
        if before is not None:
            self._report(memory, seen, before, seen.job.status)

    async def _is_cache_behind(self, seen: Snapshot, decided: Decided) -> bool:
        """Return whether the decision begins a new attempt because of a pod that exists and that the cache misses."""
        if seen.plan is None or decided.decision.status.attempt <= seen.job.attempt:
            return False
        return await misses_one(self._cluster, seen.job, seen.plan, {pod.name for pod in seen.observed.pods})

    async def _name_secret(
        self, memory: Memory, seen: Snapshot, decided: Decided, todo: list[Action]
    ) -> tuple[Decided, list[Action]]:
        """Create the Secret with the ssh key, if it is due, before the status names the Secret: see `SshSecret`."""
        secret = memory.ssh_secret
        if not secret.made and CreateSshSecret() in todo and await secret.make_first(self._cluster, seen.job):
            memory.expectations.add(CreateSshSecret())
        if secret.made:
            return decided, [action for action in todo if not isinstance(action, CreateSshSecret)]
        status = decided.decision.status.model_copy(update={"ssh_secret": None})
        # Create no pods in this pass: the pods need the Secret, which the stored status names from the next pass on.
        rest: list[Action] = [action for action in todo if not isinstance(action, (CreatePod, Create))]
        return replace(decided, decision=replace(decided.decision, status=status)), rest

    def _wait_to_store(
        self, memory: Memory, seen: Snapshot, decided: Decided, todo: list[Action]
    ) -> float | None:
        """Return the seconds that a status with new counts of pods alone may wait; None to write the status now.

        The counts show which pods existed, so that a later pass notices a pod that disappeared. The status of an
        all-or-nothing job never waits, because it must have the counts from the start. Other jobs store the counts
        when the last pods are created. A pass that deletes pods stores the counts before the deletion.
        """
        if seen.plan is None or seen.plan.shape.all_or_nothing:
            return None
        if not all(isinstance(action, (Create, CreatePod)) for action in todo):
            return None
        return memory.stored.wait(seen.job.status, decided.decision.status)

    async def _store(self, memory: Memory, seen: Snapshot, decided: Decided) -> JobStatus:
        """Write the status if it differs from the stored status, and report the changes; return what is stored."""
        written = await memory.stored.write(self._cluster, seen.job, decided.decision.status)
        if written is None:
            return seen.job.status
        if written.refusal is not None:
            self._metrics.refused_statuses.inc()
            memory.recorder.record(seen.job, Happening("Warning", Reason.STATUS_REFUSED, written.refusal))
        self._report(memory, seen, seen.job.status, written.status)
        return written.status

    def _report(self, memory: Memory, seen: Snapshot, old: JobStatus, new: JobStatus) -> None:
        """Record the events and metrics of a status that was just stored."""
        self._metrics.count(seen.job, old, new, seen.observed.pods)
        for happening in happenings(old, new):
            memory.recorder.record(seen.job, happening)

    def _ask_for_stacks(self, memory: Memory, seen: Snapshot, since: str | None) -> None:
        """Ask all ranks of a stalled job for their stacks, once for each stall. since: the start of the stall."""
        if seen.plan is not None and since not in (None, memory.stacks_of):
            memory.stacks_of = since
            self._progress.ask_for_stacks(addresses(seen, seen.plan.serves_progress))

    async def _keep_tensorboard(self, memory: Memory, seen: Snapshot) -> float | None:
        """Create or update the TensorBoard of the job, and return the seconds until the next pass is due for it."""
        job, before = seen.job, memory.no_tensorboard
        if seen.plan is None or not isinstance(job, Job):
            return None
        tries = memory.board_tries
        # Try again at once if the spec or the existing objects change: the object with a conflicting name may be
        # gone.
        tries.of((job.generation, wanted(job, seen.plan) is None, len(seen.services), len(seen.boards)))
        if left := tries.due_in():
            return left
        try:
            memory.no_tensorboard = await keep(self._cluster, job, seen.plan, seen.services, seen.boards)
        except ApiError as error:
            _log.warning(
                "%s/%s: the TensorBoard of this job can't be created or updated: %s",
                job.namespace,
                job.name,
                error,
            )
        else:
            if memory.no_tensorboard is None:
                tries.reset()
                # The next pass shows the change in the status.
                return 0.0 if before is not None else None
        tries.fail()
        return 0.0 if before is None and memory.no_tensorboard is not None else tries.due_in()

    async def _keep_record(self, memory: Memory, seen: Snapshot, decided: Decided) -> float | None:
        """Make or delete the record pod of the job, and return the seconds until the next pass is due."""
        decision = decided.decision
        if self._recorder is None or decision.expired:
            return None
        return await self._recorder.keep(
            self._cluster, memory, seen, decision.status, wanted=decided.wants_record
        )

    def _forget(self, key: Key) -> None:
        if self._recorder is not None:
            self._recorder.forget(key)
        self._memory.pop(key, None)
        self._held_bytes -= self._held.pop(key, 0)
        self._metrics.jobs.forget(key)
        self._progress.leave(key)
