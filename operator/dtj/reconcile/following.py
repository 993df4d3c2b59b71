"""The choice of a job's pods that the operator asks for their reports."""

from __future__ import annotations

from collections.abc import Sequence, Set

from dtj.api.status import JobStatus, Phase
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.snapshot import Snapshot
from dtj.reconcile.view import Key
from dtj.status.pods import PodView


def follow(progress: ProgressPoller, key: Key, seen: Snapshot, status: JobStatus) -> None:
    """Ask the reporter and the evaluator of a job while it trains, and no other pod."""
    plan = seen.plan
    trains = status.phase is Phase.RUNNING or (plan and plan.restarts_with and not status.finished)
    if plan is None or not trains:
        progress.leave(key)
        return
    # The check for a stalled job needs recent reports.
    closely = seen.job.run_policy.stall_timeout_seconds is not None
    pods = addresses(seen.observed.pods, {plan.reporter, plan.evaluator})
    progress.follow(key, pods, closely=closely)


def addresses(pods: Sequence[PodView], names: Set[str | None]) -> dict[str, str]:
    """Return the addresses of those pods of these names that run, by name."""
    return {pod.name: pod.ip for pod in pods if pod.name in names and pod.running and pod.ip}
