"""When and how a job restarts: the next attempt, the pause before it, and the pods that are created for it.

`evaluate` begins a restart after `failure_policy` has found a loss that counts. `may_restart` compares the restarts
with runPolicy.backoffLimit, and `next_attempt` counts them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from datetime import datetime
from typing import Literal

from dtj.api.job import Job
from dtj.api.shape import Shape
from dtj.api.spec import Resume
from dtj.api.status import MOST_SKIPPED, ConditionType, JobStatus
from dtj.api.stored_job import AnyJob
from dtj.status.completed import completed_without
from dtj.status.decision import Decision
from dtj.status.draft import Draft, replica_statuses
from dtj.status.failure import Loss
from dtj.status.pods import PodSet, PodView
from dtj.status.times import seconds_since
from dtj_trainer.contract.failure_class import FailureClass

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
    return f"; new pods avoid {', '.join(nodes[:_MOST_NAMED])}{more}, where pods were lost before"


def count_nodes(draft: Draft, loss: Loss) -> str:
    """Count a loss against the nodes at fault. Return a text that names the nodes that the job now avoids."""
    lost = counted(draft.job.status.node_failures, loss.nodes)
    draft.node_failures = lost
    return describe_avoided(draft.job.run_policy.avoided_nodes(lost))


def evaluator_lost(draft: Draft, loss: Loss, shape: Shape, pods: Sequence[PodView]) -> Decision:
    """Restart the evaluator. The training continues."""
    draft.failure = loss.failure
    count_nodes(draft, loss)
    next_attempt(draft, shape, pods, "evaluator", {shape.evaluator or ""})
    return Decision(draft.status(), look_again=0.0)


def in_attempt(job: AnyJob, pods: Collection[str], attempt: int) -> dict[str, int]:
    """Return `replicaAttempts` for these pod names: each replica in this attempt."""
    return {name.removeprefix(f"{job.name}-"): attempt for name in sorted(pods)}


def may_restart(job: AnyJob) -> bool:
    """Return whether runPolicy.backoffLimit allows another restart after a failure of the program."""
    return (job.status.restarts.application or 0) < job.run_policy.backoff_limit


def next_attempt(
    draft: Draft,
    shape: Shape,
    pods: Sequence[PodView],
    cause: Literal["application", "infrastructure", "evaluator"] | None,
    again: Collection[str] | None = None,
) -> None:
    """Begin the next attempt. No other function begins one.

    cause: the counter of `restarts` to increase; None: the restart does not count. again: names of the pods that
    restart while the others continue; None: all pods restart.
    """
    attempt, restarts = draft.job.attempt + 1, draft.job.status.restarts
    draft.attempt = attempt
    draft.completed_indexes = (
        None if again is None else completed_without(draft.completed_indexes, shape, again)
    )
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
    # Do not count pods that restart: a later pass treats a counted pod that does not exist as lost.
    stay = PodSet(pod for pod in pods if pod.name not in again)
    draft.replica_statuses = replica_statuses(shape, stay)


# The pause before the pods of a job restart. The first restart has no pause. Each later pause is twice as long.
#
# A job that has trained for 10 minutes has no pause again, as the kubelet resets a container's restart backoff.

_FIRST_SECONDS = 10.0
_LONGEST_SECONDS = 300.0
_LOST_AGAIN_SECONDS = 60.0
GOOD_RUN_SECONDS = 600.0
"""Seconds of training after which the next restart counts as the first."""


def restarts_in_a_row(status: JobStatus, now: datetime, *, counts: bool) -> int | None:
    """Return the value of `restartsInARow` after one more restart; None stands for 0.

    counts: whether the new restart counts.
    """
    before = 0 if _ran_for(status, now) >= GOOD_RUN_SECONDS else status.restarts_in_a_row or 0
    return before + counts or None


def is_lost_again(job: AnyJob, pod: str, now: datetime) -> bool:
    """Return whether a replica that was restarted alone is lost within a minute after the last pause.

    A kubelet whose device plugin is broken, for example, refuses each pod at once.
    """
    status, since = job.status, restarted(job.status)
    if since is None or pod.removeprefix(f"{job.name}-") not in (status.replica_attempts or {}):
        return False
    return seconds_since(since, now) - pause(status) < _LOST_AGAIN_SECONDS


def pause(status: JobStatus) -> float:
    """Return the seconds of the pause before the present attempt starts."""
    restarts = status.restarts_in_a_row or 0
    return 0.0 if restarts <= 1 else min(_FIRST_SECONDS * 2 ** min(restarts - 2, 10), _LONGEST_SECONDS)


def pause_left(status: JobStatus, now: datetime) -> float:
    """Return the remaining seconds of the pause; 0 or less when the pause is over."""
    since = restarted(status)
    if since is None or ConditionType.RESTARTING not in status.conditions.holding:
        return 0.0
    return pause(status) - seconds_since(since, now)


def restarted(status: JobStatus) -> str | None:
    """Return when the job last restarted.

    An older operator version did not store restartTime. For such a status, read the time from the condition.
    """
    restarting = status.conditions.by_type.get(ConditionType.RESTARTING)
    return status.restart_time or (restarting.last_transition_time if restarting else None)


def _ran_for(status: JobStatus, now: datetime) -> float:
    """Return the seconds since all needed pods began to run."""
    restarting = status.conditions.by_type.get(ConditionType.RESTARTING)
    if status.all_running_time is None or ConditionType.RESTARTING in status.conditions.holding:
        return 0.0
    ran = seconds_since(status.all_running_time, now)
    return min(ran, seconds_since(restarting.last_transition_time, now)) if restarting else ran


# Select the pods of an attempt to create now.


def due(job: AnyJob, shape: Shape, pods: Sequence[PodView]) -> frozenset[str]:
    """Return the names of the pods to create: the missing pods of the first incomplete stage.

    All earlier stages must be ready.

    pods: all pods of the job. A pod of an earlier attempt keeps its name until it has ended.
    """
    fixed = shape.restarts_with is None
    if fixed and job.status.all_running_time is not None:
        return frozenset()
    named = {pod.name: pod for pod in pods if pod.attempt == shape.attempts.get(pod.name)}
    if fixed and is_begun(job.status, shape.created_last, named):
        # Pods that a changed spec adds are created in the next attempt.
        return frozenset()
    at_once = shape.next_stage_on_running and not may_restore(job)
    for stage in shape.stage_names:
        absent = frozenset(name for name in stage if name not in named)
        if absent:
            return absent - {pod.name for pod in pods}
        if not all(_permits_next_stage(named[name], at_once) for name in stage):
            break
    return frozenset()


def is_begun(old: JobStatus, created_last: Set[str], existing: Collection[str]) -> bool:
    """Return whether every pod of the attempt has been created, so that the ranks may have started.

    From then on, the loss of a pod ends the attempt.

    created_last: see `Shape`. existing: names of the attempt's pods.
    """
    return old.all_running_time is not None or all(name in existing for name in created_last)


def may_restore(job: AnyJob) -> bool:
    """Return whether the pods may restore a checkpoint before they become ready. A restore can take any time."""
    status, artifacts = job.status, job.spec.artifacts if isinstance(job, Job) else None
    return (
        status.attempt > 1
        or (status.artifacts is not None and status.artifacts.checkpoint is not None)
        or (artifacts is not None and artifacts.resume is Resume.FROM_URI)
    )


def _permits_next_stage(pod: PodView, at_once: bool) -> bool:
    """Return whether this pod permits the creation of the next stage.

    at_once: whether a running pod is enough. The kubelet reports readiness a second or more late.
    """
    return pod.succeeded or (pod.running and (pod.ready or at_once))


# Checkpoints from which a program can't continue: the next attempt restores another checkpoint.
#
# A checkpoint can be intact in the bucket and still be useless, for example if a kill left the program's folder half
# written. The operator notices only that the program fails before its first step.

_SOON_SECONDS = 600.0
"""A program that reports no steps counts as continued from its checkpoint after it has run for these seconds."""
_BY_PROGRAM = frozenset[str](
    {FailureClass.APPLICATION_ERROR, FailureClass.SIGNAL, FailureClass.OOM_KILLED, FailureClass.DISK_FULL}
)


def has_new_checkpoint(draft: Draft) -> bool:
    """Return whether the newest checkpoint is neither the restored one nor one of those to skip."""
    artifacts = draft.artifacts
    if artifacts is None or artifacts.checkpoint is None:
        return False
    restored = artifacts.restored.uri if artifacts.restored else None
    return artifacts.checkpoint.uri not in (restored, *(draft.skipped_checkpoints or ()))


def skip_checkpoint(draft: Draft, loss: Loss, shape: Shape) -> str:
    """Add the restored checkpoint to those to skip if the attempt failed before its first step. Return a text about
    the skip for the message of the loss; empty if no checkpoint is skipped.
    """
    restored = draft.artifacts.restored if draft.artifacts else None
    if restored is None or restored.uri is None or not _is_fruitless(draft, loss, shape):
        return ""
    skipped = draft.skipped_checkpoints or []
    if restored.uri in skipped:
        return ""
    draft.skipped_checkpoints = [*skipped, restored.uri]
    text = f"; the attempt had restored {restored.uri} and failed before its first step"
    if len(draft.skipped_checkpoints) < MOST_SKIPPED:
        return f"{text}: the next attempt restores another checkpoint, if there is one"
    others = " and ".join(skipped)
    return f"{text}, like the attempts from {others}: the next attempt restores the newest checkpoint again"


def _is_fruitless(draft: Draft, loss: Loss, shape: Shape) -> bool:
    pod, restored = loss.failure.pod or "", draft.artifacts.restored if draft.artifacts else None
    if restored is None or restored.first_step is not None or loss.failure.failure_class not in _BY_PROGRAM:
        return False
    # In a strategy whose replicas restart alone, only the reporting pod restores a checkpoint.
    if shape.restarts_with is not None and pod != shape.reporter:
        return False
    if restored.attempt != shape.attempts.get(shape.reporter):
        return False
    if has_new_checkpoint(draft):
        return False
    if draft.progress is not None and draft.progress.step is not None:
        return True
    began = draft.job.status.all_running_time
    return began is None or seconds_since(began, draft.now) < _SOON_SECONDS
