"""Detect from the pods that an attempt, or some of its replicas, can't go on.

Where the strategy does not restart the whole job, select the replicas that restart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import replace
from datetime import datetime

from dtj.api.condition_types import ConditionType
from dtj.api.reasons import Reason
from dtj.api.status import JobStatus, ReplicaStatus
from dtj.api.unreadable import AnyJob
from dtj.status.creation import is_begun
from dtj.status.draft import Draft
from dtj.status.failure import (
    LOST_OTHERS,
    NODE_SETTLE_SECONDS,
    SETTLE_SECONDS,
    Loss,
    attempt_loss,
    early_end,
    is_lost,
)
from dtj.status.observed import Expected
from dtj.status.overdue import some
from dtj.status.pods import PodView
from dtj.status.times import read_time, seconds_since
from dtj_trainer.contract.failure_class import FailureClass

FOLLOWS_SECONDS = 180.0
"""Seconds after all pods run again in which a chief may still fail because of the replica that it had lost. The chief
of dtj_trainer fails after 120 s without a step."""


def pods_loss(
    draft: Draft, expected: Expected, pods: Sequence[PodView], missing: Sequence[str], gone: Sequence[str]
) -> Loss | None:
    """Return why the attempt, or some of its replicas, can't go on; None if the pods show no reason.

    missing: names of pods that no longer exist. gone: the missing pods whose loss counts.
    """
    old, attempt = draft.job.status, draft.job.status.current_attempt
    if expected.restarts_with is not None:
        loss = _replica_loss(attempt, old, expected, pods, gone)
        return loss and _told_apart(loss, old, expected, draft.now)
    existing = {pod.name for pod in pods}
    if (expected.all_or_nothing and existing) or is_begun(old, expected.created_last, existing):
        loss = attempt_loss(attempt, pods, missing, expected.peers)
        return loss and _port_conflict(loss, old)
    return _early(attempt, expected, pods)


def _port_conflict(loss: Loss, old: JobStatus) -> Loss:
    """Return the loss as the program's own if the previous attempt, on another port, failed for a port in use too."""
    before, failure = old.failure, loss.failure
    if before is None or before.attempt != (failure.attempt or 0) - 1:
        return loss
    kinds = {before.failure_class, failure.failure_class}
    return replace(loss, infrastructure=False) if kinds == {FailureClass.PORT_IN_USE} else loss


def _early(attempt: int, expected: Expected, pods: Sequence[PodView]) -> Loss | None:
    """Return a loss before any rank started: a pod that ended by itself. The operator recreates a deleted pod."""
    staying = [pod for pod in pods if not pod.deleting]
    done = (pod for pod in staying if pod.succeeded and pod.name not in expected.decides)
    return attempt_loss(attempt, staying, (), expected.peers) or next(
        (early_end(attempt, pod) for pod in done), None
    )


def settle_left(loss: Loss, now: datetime) -> float:
    """Return the seconds until the operator stops waiting for another cause of an uncertain loss."""
    if not loss.settle or loss.finished is None:
        return 0.0
    wait = loss.settle - seconds_since(loss.finished, now)
    # The clock of the node may be far ahead of the operator's. Do not wait until the operator's clock catches up.
    return wait if wait <= 2 * loss.settle else 0.0


def vanished(job: AnyJob, expected: Expected, pods: Sequence[PodView]) -> list[str]:
    """Return the names of pods that existed and no longer exist.

    The stored status counted such a pod, or a pod of the last stage exists, which is created after all others. The
    operator may not have created all pods of the newest attempts yet, so pods of older attempts come first.
    """
    attempts, there = expected.attempts, {pod.name for pod in pods}
    if _began_uncounted(job, expected, there):
        earlier = expected.needed - expected.created_last - there
        return [name for name in attempts if name in earlier]
    missing_pods = []
    for role, status in job.status.replica_statuses.items():
        names = expected.roles.get(role, ())
        here = [pod for pod in pods if pod.role == role]
        # After a scale-down, the stored count may include removed replicas whose pods are already gone.
        unwanted = max(status.desired - len(names) - sum(pod.name not in attempts for pod in here), 0)
        known = _counted(status) - unwanted - len(here)
        missing = [name for name in names if name not in there]
        missing_pods += sorted(missing, key=lambda name: attempts[name])[: max(known, 0)]
    return missing_pods


def _began_uncounted(job: AnyJob, expected: Expected, there: Set[str]) -> bool:
    """Return whether a pod of the last stage exists that the stored status does not count, for an unchanged spec.

    When the operator created that pod, all pods of the earlier stages existed.
    """
    old, last = job.status, expected.created_last
    roles = {role for role, names in expected.roles.items() if not last.isdisjoint(names)}
    return (
        expected.restarts_with is None
        and old.observed_generation == job.generation
        and not any(_counted(status) for role, status in old.replica_statuses.items() if role in roles)
        and not last.isdisjoint(there)
    )


def _counted(status: ReplicaStatus) -> int:
    return status.active + status.succeeded + status.failed


def _replica_loss(
    attempt: int, old: JobStatus, expected: Expected, pods: Sequence[PodView], gone: Collection[str]
) -> Loss | None:
    """Return why replicas have to restart; None if no replica has to. A loss of the evaluator does not count here."""
    candidates = [pod for pod in _staying(old, expected, pods) if pod.name != expected.evaluator]
    loss = attempt_loss(
        attempt, candidates, [name for name in gone if name != expected.evaluator], expected.peers
    )
    if loss is not None:
        return loss
    ended = (pod for pod in candidates if pod.succeeded and pod.name in expected.holds_state)
    # The whole training may be ending. The decisive pod then ends soon.
    early = next((replace(early_end(attempt, pod), settle=NODE_SETTLE_SECONDS) for pod in ended), None)
    return early or _needed_again(attempt, expected, candidates)


def _needed_again(attempt: int, expected: Expected, pods: Sequence[PodView]) -> Loss | None:
    """Return a loss if replicas ended with exit code 0 after their chief failed and before the next chief ran.

    A chief that ends closes its queues. A worker that waits in a queue then sees the end of the input
    (MonitoredTrainingSession catches OutOfRangeError). The next chief would wait for this worker without end.
    """
    name = expected.decisive[0]
    chief = next((pod for pod in pods if pod.name == name), None)
    ended = [
        pod
        for pod in pods
        if pod.succeeded and pod.attempt < expected.attempts[name] and not _outlived_start(pod, chief)
    ]
    if not ended:
        return None
    loss = early_end(attempt, ended[0])
    return replace(
        loss,
        failure=loss.failure.model_copy(update={"failure_class": Reason.COMPLETED}),
        others=frozenset(pod.name for pod in ended),
        excuse=f"{name} has restarted since, and that restart is counted",
    )


def _outlived_start(pod: PodView, chief: PodView | None) -> bool:
    """Return whether a pod that succeeded still trained when the present chief started.

    The pod uploads files between the end of its program and its own end. SETTLE_SECONDS allow for this upload.
    """
    if chief is None or not chief.running:
        return False
    begun, finished = chief.scheduled_at, pod.exit.finished if pod.exit else None
    return not begun or not finished or seconds_since(begun, read_time(finished)) > SETTLE_SECONDS


def _told_apart(loss: Loss, old: JobStatus, expected: Expected, now: datetime) -> Loss:
    """Excuse the loss of a pod that lost its connection to a replica that has restarted since.

    The loss of that replica is counted already. A decisive pod needs every replica. Any other pod needs those that
    restart with the decisive pod, and is excused only if the last restart counts. So each counted restart excuses at
    most two: the excused pods then restart last.
    """
    name, attempts = loss.failure.pod or "", expected.attempts
    restarting = old.condition(ConditionType.RESTARTING)
    if loss.infrastructure or loss.failure.failure_class not in LOST_OTHERS or restarting is None:
        return loss
    needs = expected.needed if name in expected.decides else _leading(expected)
    if name not in expected.decides and restarting.reason in LOST_OTHERS:
        return loss
    if all(attempts[other] <= attempts.get(name, 0) for other in needs):
        return loss
    ago = seconds_since(restarting.last_transition_time, now)
    if not old.holds(ConditionType.RESTARTING) and ago > FOLLOWS_SECONDS:
        return loss
    # No node is at fault, and the cause is known, so that a short wait is enough.
    excuse = "the replica that it lost has restarted since, and that restart is counted"
    return replace(loss, excuse=excuse, nodes=frozenset(), settle=min(loss.settle, SETTLE_SECONDS))


def _leading(expected: Expected) -> frozenset[str]:
    """Return the names of the decisive pod and of those that restart with it."""
    name = expected.decisive[0]
    return (expected.restarts_with or {}).get(name, frozenset({name}))


def evaluator_loss(
    attempt: int,
    old: JobStatus,
    expected: Expected,
    pods: Sequence[PodView],
    gone: Collection[str],
    limit: int,
) -> Loss | None:
    """Return why the evaluator has to restart; None also if its program has failed more than `limit` times."""
    if expected.evaluator is None:
        return None
    candidates = [pod for pod in _staying(old, expected, pods) if pod.name == expected.evaluator]
    loss = attempt_loss(attempt, candidates, [name for name in gone if name == expected.evaluator])
    if loss is None or (not loss.infrastructure and (old.restarts.evaluator or 0) >= limit):
        return None
    return loss


def start_again(expected: Expected, pods: Sequence[PodView], gone: Collection[str]) -> set[str]:
    """Return the names of the pods that restart after the loss of the failed pods in `pods` and of `gone`."""
    groups = expected.restarts_with or {}
    lost = {pod.name for pod in pods if is_lost(pod)} | {*gone}
    # The members of a group share one frozenset, so that the set comprehension merges each group once.
    again: set[str] = set().union(*{groups[name] for name in lost & groups.keys()})
    # Pods that do not exist yet are created for the new attempt.
    again |= groups.keys() - {pod.name for pod in pods}
    if not again.isdisjoint(expected.decides):
        # The training continues from a checkpoint and also needs the pods whose program had completed.
        again |= {pod.name for pod in pods if pod.succeeded}
    return again


def _staying(old: JobStatus, expected: Expected, pods: Sequence[PodView]) -> list[PodView]:
    """Leave out deleted pods that the operator recreates: pods outside a group, before all pods have run."""
    return [pod for pod in pods if old.all_running_time or expected.all_or_nothing or not pod.deleting]


def told_again(names: Collection[str], of: int) -> str:
    """Describe which pods restart."""
    if len(names) == of:
        return "all start again from the newest checkpoint"
    return f"{some(sorted(names))} {'starts' if len(names) == 1 else 'start'} again, the others go on"
