"""What starts again, stored in the status."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dtj.api.unreadable import AnyJob
from dtj.status.draft import Draft, Evaluation
from dtj.status.failure import Loss
from dtj.status.observed import Expected
from dtj.status.offenders import counted, told_avoided
from dtj.status.pods import PodView
from dtj.status.reports import replica_statuses


def count_nodes(draft: Draft, loss: Loss) -> str:
    """Count a loss against the nodes at fault; which nodes are avoided from now on, in words."""
    lost = counted(draft.job.status.node_failures, loss.nodes)
    draft.values["node_failures"] = lost
    return told_avoided(draft.job.run_policy.avoided_nodes(lost))


def evaluator_lost(draft: Draft, loss: Loss, expected: Expected, pods: Sequence[PodView]) -> Evaluation:
    """The evaluator starts again; the training does not notice."""
    attempt = draft.job.status.current_attempt + 1
    restarts = draft.job.status.restarts
    draft.values["failure"] = loss.failure
    draft.values["restarts"] = restarts.model_copy(update={"evaluator": (restarts.evaluator or 0) + 1})
    draft.values["attempt"] = attempt
    count_nodes(draft, loss)
    begin_again(draft, expected, pods, {expected.evaluator or ""}, attempt)
    return Evaluation(draft.status(), look_again=0.0, hold=True)


def in_attempt(job: AnyJob, pods: Collection[str], attempt: int) -> dict[str, int]:
    """`replicaAttempts` of these pods, given by name, when they are of that attempt."""
    return {name.removeprefix(f"{job.name}-"): attempt for name in sorted(pods)}


def begin_again(
    draft: Draft, expected: Expected, pods: Sequence[PodView], again: Collection[str], attempt: int
) -> None:
    """Store in which attempt these replicas are from now on."""
    draft.values["replica_attempts"] = {
        **(draft.job.status.replica_attempts or {}),
        **in_attempt(draft.job, again, attempt),
    }
    # Those that start again are not counted: one that was, and is not there, is lost.
    stay = [pod for pod in pods if pod.name not in again]
    draft.values["replica_statuses"] = replica_statuses(expected, stay)
