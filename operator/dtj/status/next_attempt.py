"""Begin the next attempt and select the replicas that restart in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from dtj.api.unreadable import AnyJob
from dtj.status.decision import Decision
from dtj.status.draft import Draft
from dtj.status.failure import Loss
from dtj.status.observed import Expected
from dtj.status.pods import PodView
from dtj.status.replicas import replica_statuses

MOST_NODES = 32
"""Maximum number of nodes in a status. The status keeps the nodes with the most losses."""
_MOST_NAMED = 4


def counted(known: Mapping[str, int] | None, nodes: Collection[str]) -> dict[str, int] | None:
    """Add one loss to the count of each of these nodes."""
    counts = {**(known or {}), **{node: (known or {}).get(node, 0) + 1 for node in nodes}}
    kept = sorted(counts, key=lambda node: (node not in nodes, -counts[node], node))[:MOST_NODES]
    return {node: counts[node] for node in sorted(kept)} or None


def describe_avoided(nodes: Sequence[str]) -> str:
    """Describe the avoided nodes; return an empty text when the job avoids none."""
    if not nodes:
        return ""
    more = f" and {len(nodes) - _MOST_NAMED} more" if nodes[_MOST_NAMED:] else ""
    return f"; avoids {', '.join(nodes[:_MOST_NAMED])}{more}, where pods were lost before"


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
    if again is None or not expected.peers.isdisjoint(again):
        draft.completed_indexes = None
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
