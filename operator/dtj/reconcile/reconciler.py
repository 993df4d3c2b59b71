"""One pass over a job: observe, decide, store, act.

A pass stores the status before it carries out the actions that follow from the status. If a pass breaks off, the next
pass completes the work: the status has the attempt, the restarts and the end of the job, and every action is
idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from dtj.api.job import Job
from dtj.api.managed_by import other_manager_of
from dtj.api.reasons import Reason
from dtj.api.status import JobStatus
from dtj.api.unreadable import AnyJob
from dtj.cluster.port import ApiError, Cluster
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj.reconcile.actions import Action, Create, CreatePod, CreateSshSecret
from dtj.reconcile.boot_clock import Clock, boot_clock
from dtj.reconcile.decision import Decided, decide, soonest
from dtj.reconcile.executor import BEHIND_SECONDS, MOST_AT_ONCE, Executor
from dtj.reconcile.live_reads import misses_one
from dtj.reconcile.memory import Memory
from dtj.reconcile.metrics import Metrics
from dtj.reconcile.observer import Observer, addresses
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.record import Recorder
from dtj.reconcile.snapshot import Snapshot, size
from dtj.reconcile.tensorboard import keep, wanted
from dtj.reconcile.view import Key, View
from dtj.status.events import Happening, happenings
from dtj.status.overdue import describe_overdue, next_due, overdue

_log = logging.getLogger(__name__)
# The pause before a job's next pass, in processor times of the last pass. One job uses at most a tenth of a core.
_REST = 9.0
# The pause before the next pass over a job that has ended. One pass then sees the end of several pods.
_OVER_SECONDS = 1.0


class Reconciler:
    """Brings jobs to the state that their specs describe, one pass at a time."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        progress: ProgressPoller,
        metrics: Metrics,
        now: Callable[[], datetime],
        plan: Callable[[Job], Plan] = plan_job,
        elapsed: Callable[[], float] = boot_clock,
        counts_after: float = 0.0,
        moves: Callable[[Key], None] = lambda _: None,
        at_once: int = MOST_AT_ONCE,
        crowded: Callable[[], bool] = lambda: False,
        host_paths: Sequence[str] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """now: returns the time of the API server.
        plan: plans a job without faults. `dtj run` plans jobs differently from a cluster.
        elapsed: returns seconds of a monotonic clock, for waits within the process.
        counts_after: seconds after a write of a status in which a status with other counts of pods alone waits, so
        that one write has the changes of several pods.
        moves: called with the key of a job after each answered request: a pass over a large job may take long.
        at_once: the most pods of a job that the executor creates or deletes at a time.
        crowded: returns whether other jobs have, or wait for, a pass. A large job then gets fewer at a time.
        host_paths: folders of nodes below which jobs may cache data; None: any.
        recorder: makes record pods; None: the ends of jobs are not recorded, except by their own pods.
        """
        self._cluster = cluster
        self._view = view
        self._progress = progress
        self._metrics = metrics
        self._clock = Clock(now, elapsed)
        self._counts_after = counts_after
        self._host_paths = host_paths
        self._recorder = recorder
        self._observer = Observer(cluster, view, progress, self._clock, plan, records=recorder is not None)
        self._executor = Executor(cluster, moves, at_once, crowded)
        self._memory: dict[Key, Memory] = {}

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
        if other_manager_of(manifest):
            self._forget(key)
            return strays
        again = await self._pass(key, manifest)
        return soonest(strays, again, self._memory[key].recorder.due_in())

    def rest(self, key: Key) -> float:
        """Return the seconds after a job's last pass in which no other pass may begin."""
        memory = self._memory.get(key)
        if memory is None:
            return 0.0
        return max(_REST * memory.cost.seconds, _OVER_SECONDS if memory.over else 0.0)

    def is_echo(self, key: Key, version: str) -> bool:
        """Return whether this version of a job is the last write of its last pass and needs no other pass."""
        memory = self._memory.get(key)
        return memory is not None and memory.stored.is_echo(version)

    async def _end_strays(self, key: Key, uid: str | None) -> float | None:
        """Delete by force the overdue pods of deleted jobs of this name.

        Returns seconds until the next pod of such jobs is overdue, or None without such pods.

        uid: the uid of the job that has the name now; None when no job has the name.
        """
        pods = [pod.view for pod in self._view.pods(key) if pod.owner and pod.owner != uid]
        now = self._clock.now()
        for pod in overdue(pods, now):
            _log.info("%s/%s: %s", *key, describe_overdue(pod))
            await self._cluster.delete_pod(key[0], pod.name, pod.uid, force=True)
        return next_due(pods, now)

    async def _pass(self, key: Key, manifest: Mapping[str, Any]) -> float | None:
        memory = self._remembered(key, manifest["metadata"]["uid"])
        seen = await self._observer.observe(key, memory, memory.stored.latest(manifest))
        self._catch_up(key, memory, seen)
        decided = await self._decide(memory, seen)
        memory.over = decided.decision.status.finished
        if await self._is_cache_behind(seen, decided):
            return BEHIND_SECONDS
        attempt = seen.job.status.current_attempt
        todo = memory.expectations.without(decided.todo, attempt)
        todo = memory.refusals.without(todo, (seen.job.generation, attempt))
        if seen.names_secret:
            decided, todo = await self._name_secret(memory, seen, decided, todo)
        wait = self._wait_to_store(memory, seen, decided, todo)
        if wait is None:
            await self._store(key, memory, seen, decided)
        await memory.recorder.flush(self._cluster)
        self._observer.follow(key, seen, decided.decision.status)
        self._ask_for_stacks(memory, seen, decided.decision.stalled_since)
        if decided.decision.status.attempt != seen.job.status.current_attempt:
            return 0.0  # The next pass plans the new attempt.
        look_again = soonest(decided.decision.look_again, wait)
        again = await self._executor.act(seen.job, seen.plan, memory, todo, look_again)
        again = soonest(again, memory.expectations.due_in())
        again = await self._keep_tensorboard(memory, seen, again)
        if memory.over and not todo:
            memory.shed()
        return soonest(again, await self._keep_record(memory, seen, decided))

    def _remembered(self, key: Key, uid: str) -> Memory:
        """Return the memory of this job. Drop the memory of an earlier job of the same name."""
        memory = self._memory.get(key)
        if memory is None or memory.uid != uid:
            memory = Memory(uid, self._clock, self._counts_after, self._host_paths)
            self._memory[key] = memory
            self._progress.leave(key)
        return memory

    def _catch_up(self, key: Key, memory: Memory, seen: Snapshot) -> None:
        """Report the stored status, in case an earlier write got no answer.

        The report is at the beginning of the pass, so that it takes place even if the pass breaks off.
        """
        before = memory.stored.confirmed(seen.job.status)
        if before is not None:
            self._report(memory, seen, before, seen.job.status)
        self._metrics.see(key, seen.job, seen.job.status, seen.observed)

    async def _decide(self, memory: Memory, seen: Snapshot, job: AnyJob | None = None) -> Decided:
        """Decide in view of the snapshot. job: the job with another status, in place of the job in the snapshot."""

        def decided() -> Decided:
            return decide(self._observer.planned_again(seen, job) if job else seen)

        return await memory.cost.count(decided, size(seen.job, seen.observed.pods))

    async def _is_cache_behind(self, seen: Snapshot, decided: Decided) -> bool:
        """Return whether the decision begins a new attempt because of a pod that exists and that the cache misses."""
        if seen.plan is None or decided.decision.status.attempt <= seen.job.status.current_attempt:
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
        # Create no pods yet: the pods need the Secret, and the status does not name the Secret.
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
        if seen.plan is None or seen.plan.all_or_nothing:
            return None
        if not all(isinstance(action, (Create, CreatePod)) for action in todo):
            return None
        return memory.stored.wait(seen.job.status, decided.decision.status)

    async def _store(self, key: Key, memory: Memory, seen: Snapshot, decided: Decided) -> None:
        """Write the status if it differs from the stored status, and report the changes."""
        written = await memory.stored.write(self._cluster, seen.job, decided.decision.status)
        if written is None:
            return
        if written.refusal is not None:
            self._metrics.refused_statuses.inc()
            memory.recorder.record(seen.job, Happening("Warning", Reason.STATUS_REFUSED, written.refusal))
        follows = await self._decide(memory, seen, replace(seen.job, status=written.status))
        memory.stored.expect_echo(settled=follows == decided)
        self._report(memory, seen, seen.job.status, written.status)
        self._metrics.see(key, seen.job, written.status, seen.observed)

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

    async def _keep_tensorboard(self, memory: Memory, seen: Snapshot, again: float | None) -> float | None:
        """Create or update the TensorBoard of the job, and return the seconds until the next pass is due.

        again: the seconds until the next pass is due without a TensorBoard.
        """
        job, before = seen.job, memory.no_tensorboard
        if seen.plan is None or not isinstance(job, Job):
            return again
        tries = memory.board_tries
        # The objects that exist are part of what is tried: the one in the way may have gone.
        tries.of((job.generation, wanted(job, seen.plan) is None, len(seen.services), len(seen.boards)))
        if left := tries.due_in():
            return soonest(again, left)
        try:
            memory.no_tensorboard = await keep(self._cluster, job, seen.plan, seen.services, seen.boards)
        except ApiError as error:
            _log.warning("%s/%s: its TensorBoard: %s", job.namespace, job.name, error)
        else:
            if memory.no_tensorboard is None:
                tries.reset()
                # The next pass shows the change in the status.
                return 0.0 if before is not None else again
        tries.fail()
        return 0.0 if before is None and memory.no_tensorboard is not None else soonest(again, tries.due_in())

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
        self._metrics.jobs.forget(key)
        self._progress.leave(key)
