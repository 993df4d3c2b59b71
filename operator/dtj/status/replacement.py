"""Select the replicas that restart where a strategy does not restart the whole job."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import replace
from datetime import datetime

from dtj.api.condition_types import ConditionType
from dtj.api.names import role_of
from dtj.api.reasons import Reason
from dtj.api.status import JobStatus, ReplicaStatus
from dtj.api.unreadable import AnyJob
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

FOLLOWS_SECONDS = 180.0
"""After all ran again: how long a chief may stand still for a replica that it had lost. dtj_trainer's ends after
120 s without a step."""


def vanished(job: AnyJob, expected: Expected, pods: Sequence[PodView]) -> list[str]:
    """Names of pods that are gone without a trace: the stored status counted them, or the last stage, which came
    after it was stored, shows that they were there.

    A pod that is not there may also be one that was not made yet: those that started again last are.
    """
    attempts, there = expected.attempts, {pod.name for pod in pods}
    if _began_uncounted(job, expected, there):
        return [name for stage in expected.stages[:-1] for name in stage if name not in there]
    missing_pods = []
    for role, status in job.status.replica_statuses.items():
        names = [name for name in attempts if role_of(name) == role]
        here = [pod for pod in pods if pod.role == role]
        # Fewer are wanted than before: of those counted, some may be the ones that are not wanted any more, and went.
        unwanted = max(status.desired - len(names) - sum(pod.name not in attempts for pod in here), 0)
        known = _counted(status) - unwanted - len(here)
        missing = [name for name in names if name not in there]
        missing_pods += sorted(missing, key=lambda name: attempts[name])[: max(known, 0)]
    return missing_pods


def _began_uncounted(job: AnyJob, expected: Expected, there: Set[str]) -> bool:
    """Whether pods of the last stage are there of which the stored status does not tell, and the spec is still that
    of which it tells: all pods of the stages before were there when they were made.
    """
    old, last = job.status, expected.stages[-1]
    roles = {role_of(name) for name in last}
    return (
        expected.restarts_with is None
        and old.observed_generation == job.generation
        and not any(_counted(status) for role, status in old.replica_statuses.items() if role in roles)
        and not there.isdisjoint(last)
    )


def _counted(status: ReplicaStatus) -> int:
    return status.active + status.succeeded + status.failed


def replica_loss(
    attempt: int, old: JobStatus, expected: Expected, pods: Sequence[PodView], gone: Collection[str]
) -> Loss | None:
    """Why replicas have to start again, or None; the evaluator's loss is none of the training's."""
    candidates = [pod for pod in _staying(old, expected, pods) if pod.name != expected.evaluator]
    loss = attempt_loss(
        attempt, candidates, [name for name in gone if name != expected.evaluator], expected.decides
    )
    if loss is not None:
        return loss
    ended = (pod for pod in candidates if pod.succeeded and pod.name in expected.holds_state)
    # Its end may be part of everything's: the decisive pod's is then not far.
    early = next((replace(early_end(attempt, pod), settle=NODE_SETTLE_SECONDS) for pod in ended), None)
    return early or _needed_again(attempt, expected, candidates)


def _needed_again(attempt: int, expected: Expected, pods: Sequence[PodView]) -> Loss | None:
    """A loss when replicas ended with exit code 0 because their chief failed and before the next chief ran, or None.

    A worker that waits in a queue takes the closing of the queue by a chief that ends for the end of the input
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
        excuse=f"{name} has started again since, which is counted",
    )


def _outlived_start(pod: PodView, chief: PodView | None) -> bool:
    """Whether a pod that succeeded was still at work when the present chief started. SETTLE_SECONDS are allowed for
    the upload of files, which comes between the end of the program and the end of the pod.
    """
    if chief is None or not chief.running:
        return False
    begun, finished = chief.scheduled_at, pod.exit.finished if pod.exit else None
    return not begun or not finished or seconds_since(begun, read_time(finished)) > SETTLE_SECONDS


def told_apart(loss: Loss, old: JobStatus, expected: Expected, now: datetime) -> Loss:
    """The loss, not to be counted if a decisive pod lost its connections to a replica that has started again since:
    the loss of that one was. Once at most: afterwards the decisive pod is the one that started last.
    """
    name, attempts = loss.failure.pod or "", expected.attempts
    cut_off = loss.failure.failure_class in LOST_OTHERS and name in expected.decides
    restarting = old.condition(ConditionType.RESTARTING)
    if loss.infrastructure or not cut_off or restarting is None:
        return loss
    if all(attempts[other] <= attempts[name] for other in expected.needed):
        return loss
    ago = seconds_since(restarting.last_transition_time, now)
    if not old.holds(ConditionType.RESTARTING) and ago > FOLLOWS_SECONDS:
        return loss
    # No node is to blame for it, and there is no need to wait long for another cause.
    excuse = "it lost what has started again since, which is counted"
    return replace(loss, excuse=excuse, nodes=frozenset(), settle=min(loss.settle, SETTLE_SECONDS))


def evaluator_loss(
    attempt: int,
    old: JobStatus,
    expected: Expected,
    pods: Sequence[PodView],
    gone: Collection[str],
    limit: int,
) -> Loss | None:
    """Why the evaluator has to start again; None also when its program has failed more than `limit` times."""
    if expected.evaluator is None:
        return None
    candidates = [pod for pod in _staying(old, expected, pods) if pod.name == expected.evaluator]
    loss = attempt_loss(attempt, candidates, [name for name in gone if name == expected.evaluator])
    if loss is None or (not loss.infrastructure and (old.restarts.evaluator or 0) >= limit):
        return None
    return loss


def start_again(expected: Expected, pods: Sequence[PodView], gone: Collection[str]) -> set[str]:
    """Names of the pods that start again after the loss of those in `pods` that are lost and of those `gone`."""
    groups = expected.restarts_with or {}
    lost = {pod.name for pod in pods if is_lost(pod)} | {*gone}
    # Groups are shared by their members: a set of them has each once.
    again: set[str] = set().union(*{groups[name] for name in lost & groups.keys()})
    # Pods that do not exist yet are created for the new attempt.
    again |= groups.keys() - {pod.name for pod in pods}
    if not again.isdisjoint(expected.decides):
        # The training goes on from a checkpoint: it needs also those whose program had come to its end.
        again |= {pod.name for pod in pods if pod.succeeded}
    return again


def _staying(old: JobStatus, expected: Expected, pods: Sequence[PodView]) -> list[PodView]:
    """Leave out the deleted pods that are created again: those outside a group, before all pods have run."""
    return [pod for pod in pods if old.all_running_time or expected.all_or_nothing or not pod.deleting]


def told_again(names: Collection[str], of: int) -> str:
    """Describe which pods restart."""
    if len(names) == of:
        return "all start again from the newest checkpoint"
    return f"{some(sorted(names))} {'starts' if len(names) == 1 else 'start'} again, the others go on"
