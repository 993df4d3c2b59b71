"""Begin the next attempt and select the replicas that restart in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from dtj.api.unreadable import AnyJob
from dtj.status.bad_nodes import counted, describe_avoided
from dtj.status.decision import Decision
from dtj.status.draft import Draft
from dtj.status.failure import Loss
from dtj.status.observed import Expected
from dtj.status.pods import PodView
from dtj.status.replicas import replica_statuses


def count_nodes(draft: Draft, loss: Loss) -> str:
    """Count a loss against the nodes at fault. Return a text that names the nodes that the job now avoids."""
    lost = counted(draft.job.status.node_failures, loss.nodes)
    draft.node_failures = lost
    return describe_avoided(draft.job.run_policy.avoided_nodes(lost))


def evaluator_lost(draft: Draft, loss: Loss, expected: Expected, pods: Sequence[PodView]) -> Decision:
    """Restart the evaluator. The training continues."""
    draft.failure = loss.failure
    count_nodes(draft, loss)
    next_attempt(draft, expected, pods, "evaluator", {expected.evaluator or ""})
    return Decision(draft.status(), look_again=0.0)


def in_attempt(job: AnyJob, pods: Collection[str], attempt: int) -> dict[str, int]:
    """Return `replicaAttempts` for these pod names: each replica in this attempt."""
    return {name.removeprefix(f"{job.name}-"): attempt for name in sorted(pods)}


def next_attempt(
    draft: Draft,
    expected: Expected,
    pods: Sequence[PodView],
    cause: Literal["application", "infrastructure", "evaluator"] | None,
    again: Collection[str] | None = None,
) -> None:
    """Begin the next attempt. No other function begins one.

    cause: the counter of `restarts` to increase; None: the restart does not count. again: names of the pods that
    restart while the others continue; None: all pods restart.
    """
    attempt, restarts = draft.job.status.current_attempt + 1, draft.job.status.restarts
    draft.attempt = attempt
    if cause is not None:
        counted_before: int | None = getattr(restarts, cause)
        draft.restarts = restarts.model_copy(update={cause: (counted_before or 0) + 1})
    if again is None:
        draft.all_running_time = None
        return
    draft.replica_attempts = {
        **(draft.job.status.replica_attempts or {}),
        **in_attempt(draft.job, again, attempt),
    }
    # Do not count the restarting pods. A counted pod that does not exist is treated as lost.
    stay = [pod for pod in pods if pod.name not in again]
    draft.replica_statuses = replica_statuses(expected, stay)
