"""The beginning of a pass: a snapshot of a job from caches, reports and, for an MPIJob, the API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

from dtj.api.job import Fault, Job
from dtj.api.status import JobStatus, Phase
from dtj.api.unreadable import AnyJob
from dtj.cluster.port import Cluster
from dtj.plan.model import Plan
from dtj.reconcile.boot_clock import Clock
from dtj.reconcile.delegation import find_delegate
from dtj.reconcile.memory import Memory
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.snapshot import Snapshot, size
from dtj.reconcile.view import Key, View, is_delegated
from dtj.status.mpijob import not_taken_up
from dtj.status.observed import Observed
from dtj.status.progress_report import Report


class Observer:
    """Takes snapshots of jobs, and chooses the pods that are asked for reports."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        progress: ProgressPoller,
        clock: Clock,
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
        delegates = is_delegated(job)
        pods = [
            pod.view
            for pod in self._view.pods(key)
            if pod.owner == job.uid and (delegates or not pod.delegated)
        ]
        memory.cost.seconds += time.thread_time() - begun
        # A job that has pods needs no new name: its status had the name of the Secret before the pods were created.
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

    def planned_again(self, seen: Snapshot, job: AnyJob) -> Snapshot:
        """Return the snapshot with another status of the job, and with a plan for that status."""
        return replace(seen, job=job, plan=self._planned(job, seen.faults))

    def follow(self, key: Key, seen: Snapshot, status: JobStatus) -> None:
        """Ask the reporter and the evaluator of a job for reports while the job trains, and no other pod."""
        plan = seen.plan
        trains = status.phase is Phase.RUNNING or (plan and plan.restarts_with and not status.finished)
        if plan is None or not trains:
            self._progress.leave(key)
            return
        # The check for a stalled job needs recent reports.
        closely = seen.job.run_policy.stall_timeout_seconds is not None
        self._progress.follow(key, addresses(seen, {plan.reporter, plan.evaluator}), closely=closely)

    def _planned(self, job: AnyJob, faults: Sequence[Fault]) -> Plan | None:
        return self._plan(job) if isinstance(job, Job) and not faults else None

    def _named(self, memory: Memory, job: AnyJob) -> AnyJob:
        name = memory.ssh_secret.name(job)
        return replace(job, status=job.status.model_copy(update={"ssh_secret": name}))

    def _reported(self, key: Key, plan: Plan | None) -> Observed:
        """Return the reports of the plan's pods."""
        if plan is None:
            return Observed()
        report = self._progress.report(key, plan.reporter) or Report()
        evaluation = self._progress.report(key, plan.evaluator) if plan.evaluator else None
        return Observed(
            progress=report.progress,
            artifacts=report.artifacts,
            bottleneck=report.bottleneck,
            checkpoint_held_up=report.checkpoint_held_up,
            artifacts_incomplete=report.artifacts_incomplete,
            evaluation=evaluation.progress if evaluation else None,
            answers=self._progress.answers(key, plan.reporter),
            program_ended=report.program_ended,
            utilisation=report.utilisation,
            pod_checkpoint=report.pod_checkpoint,
        )


def addresses(seen: Snapshot, names: Set[str | None]) -> dict[str, str]:
    """Return the addresses of those pods of these names that run, by name."""
    return {pod.name: pod.ip for pod in seen.observed.pods if pod.name in names and pod.running and pod.ip}
