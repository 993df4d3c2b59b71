"""Which losses of pods count: as a failure of the program, as a loss of the infrastructure, or as no loss at all.

`evaluate` asks `pods_loss` in each pass, and then whether the failure is lasting and whether the restored checkpoint
is of use. `failure` names the cause of one pod's end. `restart_policy` has what follows from a loss.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from dtj.api.job import Job
from dtj.api.pod_template import own_program
from dtj.api.reasons import Reason
from dtj.api.shape import Shape
from dtj.api.spec import ReplicaSpec
from dtj.api.status import (
    ArtifactsStatus,
    ConditionType,
    Failure,
    JobStatus,
    ProgressStatus,
    ReplicaStatus,
)
from dtj.api.stored_job import AnyJob
from dtj.status.completed import is_needed_again
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
from dtj.status.force_deletion import some
from dtj.status.pods import PodSet, PodView
from dtj.status.restart_policy import is_begun
from dtj.status.times import seconds_since
from dtj_trainer.contract.failure_class import FailureClass

FOLLOWS_SECONDS = 180.0
"""Seconds after all pods run again in which a chief may still fail because of the replica that it had lost. The chief
of dtj_trainer fails after 120 s without a step."""


def pods_loss(
    draft: Draft, shape: Shape, pods: PodSet, missing: Sequence[str], gone: Sequence[str]
) -> Loss | None:
    """Return why the attempt, or some of its replicas, can't go on; None if the pods show no reason.

    missing: names of pods that no longer exist. gone: the missing pods whose loss counts.
    """
    old, attempt = draft.job.status, draft.job.attempt
    if shape.restarts_with is not None:
        loss = _replica_loss(attempt, old, shape, pods, gone)
        return loss and _scaled_down(_told_apart(loss, old, shape, draft.now), old)
    existing = pods.named
    if (shape.all_or_nothing and existing) or is_begun(old, shape.created_last, existing):
        loss = attempt_loss(attempt, pods, missing, shape.peers)
        return loss and _port_conflict(loss, old)
    return _early(attempt, shape, pods)


def _port_conflict(loss: Loss, old: JobStatus) -> Loss:
    """Count the loss as the program's fault if the previous attempt, on another port, also found its port in use."""
    before, failure = old.failure, loss.failure
    if before is None or before.attempt != (failure.attempt or 0) - 1:
        return loss
    kinds = {before.failure_class, failure.failure_class}
    return replace(loss, infrastructure=False) if kinds == {FailureClass.PORT_IN_USE} else loss


def _early(attempt: int, shape: Shape, pods: Sequence[PodView]) -> Loss | None:
    """Return the loss if a pod ended by itself before any rank started. A deleted pod is no loss: it is recreated."""
    staying = PodSet(pod for pod in pods if not pod.deleting)
    done = (pod for pod in staying if pod.succeeded and pod.name not in shape.decides)
    return attempt_loss(attempt, staying, (), shape.peers) or next(
        (early_end(attempt, pod) for pod in done), None
    )


def settle_left(loss: Loss, now: datetime) -> float:
    """Return the seconds until the operator stops waiting for another cause of an uncertain loss."""
    if not loss.settle or loss.finished is None:
        return 0.0
    wait = loss.settle - seconds_since(loss.finished, now)
    # The clock of the node may be far ahead of the operator's. Do not wait until the operator's clock catches up.
    return wait if wait <= 2 * loss.settle else 0.0


def vanished(job: AnyJob, shape: Shape, pods: PodSet) -> list[str]:
    """Return the names of pods that existed and no longer exist.

    The stored status counted such a pod, or a pod of the last stage exists, which is created after all others. The
    operator may not have created all pods of the newest attempts yet, so pods of older attempts come first.
    """
    attempts, there = shape.attempts, pods.named.keys()
    if attempts.keys() <= there:
        return []
    if _began_uncounted(job, shape, there):
        earlier = shape.needed - shape.created_last - there
        return [name for name in attempts if name in earlier]
    missing_pods = []
    for role, status in job.status.replica_statuses.items():
        names = shape.roles.get(role, ())
        here = [pod for pod in pods if pod.role == role]
        # After a scale-down, the stored count may include removed replicas whose pods are already gone.
        unwanted = max(status.desired - len(names) - sum(pod.name not in attempts for pod in here), 0)
        known = _counted(status) - unwanted - len(here)
        missing = [name for name in names if name not in there]
        missing_pods += sorted(missing, key=lambda name: attempts[name])[: max(known, 0)]
    return missing_pods


def _began_uncounted(job: AnyJob, shape: Shape, there: Set[str]) -> bool:
    """Return whether a pod of the last stage exists that the stored status does not count, for an unchanged spec.

    When the operator created that pod, all pods of the earlier stages existed.
    """
    old, last = job.status, shape.created_last
    roles = {role for role, names in shape.roles.items() if not last.isdisjoint(names)}
    return (
        shape.restarts_with is None
        and old.observed_generation == job.generation
        and not any(_counted(status) for role, status in old.replica_statuses.items() if role in roles)
        and not last.isdisjoint(there)
    )


def _counted(status: ReplicaStatus) -> int:
    return status.active + status.succeeded + status.failed


def _replica_loss(
    attempt: int, old: JobStatus, shape: Shape, pods: PodSet, gone: Collection[str]
) -> Loss | None:
    """Return why replicas have to restart; None if no replica has to. A loss of the evaluator does not count here."""
    candidates = PodSet(pod for pod in _staying(old, shape, pods) if pod.name != shape.evaluator)
    loss = attempt_loss(attempt, candidates, [name for name in gone if name != shape.evaluator], shape.peers)
    if loss is not None:
        return loss
    ended = (pod for pod in candidates if pod.succeeded and pod.name in shape.holds_state)
    # At the end of a training, a pod that holds state may end shortly before the decisive pod. Wait for the latter.
    early = next((replace(early_end(attempt, pod), settle=NODE_SETTLE_SECONDS) for pod in ended), None)
    return early or _needed_again(attempt, shape, candidates)


def _needed_again(attempt: int, shape: Shape, pods: Sequence[PodView]) -> Loss | None:
    """Return a loss if replicas ended with exit code 0 and the next leader needs them: see `is_needed_again`."""
    name = shape.decisive[0]
    leader = next((pod for pod in pods if pod.name == name), None)
    ended = [pod for pod in pods if pod.succeeded and is_needed_again(pod, leader, shape)]
    if not ended:
        return None
    loss = early_end(attempt, ended[0])
    return replace(
        loss,
        failure=loss.failure.model_copy(update={"failure_class": Reason.COMPLETED}),
        others=frozenset(pod.name for pod in ended),
        excuse=f"{name} has restarted since, and that restart is counted, so that this loss does not count",
    )


def _told_apart(loss: Loss, old: JobStatus, shape: Shape, now: datetime) -> Loss:
    """Excuse the loss of a pod that failed because a replica restarted: the loss of that replica is counted already.

    A decisive pod depends on every replica. Any other pod depends on those that restart with the decisive pod, and is
    excused only if the last restart was counted. Therefore each counted restart excuses at most two losses.
    """
    name, attempts = loss.failure.pod or "", shape.attempts
    restarting = old.conditions.by_type.get(ConditionType.RESTARTING)
    if loss.infrastructure or loss.failure.failure_class not in LOST_OTHERS or restarting is None:
        return loss
    needs = shape.needed if name in shape.decides else _leading(shape)
    if name not in shape.decides and restarting.reason in LOST_OTHERS:
        return loss
    if all(attempts[other] <= attempts.get(name, 0) for other in needs):
        return loss
    ago = seconds_since(restarting.last_transition_time, now)
    if ConditionType.RESTARTING not in old.conditions.holding and ago > FOLLOWS_SECONDS:
        return loss
    # Blame no node. The cause is known, so that a short wait for further losses is enough.
    excuse = (
        "the replica to which it lost its connection has restarted since, and that restart is counted, so that this "
        "loss does not count"
    )
    return replace(loss, excuse=excuse, nodes=frozenset(), settle=min(loss.settle, SETTLE_SECONDS))


def _scaled_down(loss: Loss, old: JobStatus) -> Loss:
    """Excuse the loss of a replica that a scale-down removed, and that the job wants again."""
    failure = loss.failure
    before = old.replica_statuses.get(failure.role or "")
    if not loss.infrastructure or before is None or failure.index is None or failure.index < before.desired:
        return loss
    excuse = "a scale-down removed this replica, and the job now asks for it again, so that this loss does not count"
    return replace(loss, excuse=excuse, nodes=frozenset())


def _leading(shape: Shape) -> frozenset[str]:
    """Return the names of the decisive pod and of those that restart with it."""
    name = shape.decisive[0]
    return (shape.restarts_with or {}).get(name, frozenset({name}))


def evaluator_loss(
    attempt: int,
    old: JobStatus,
    shape: Shape,
    pods: PodSet,
    gone: Collection[str],
    limit: int,
) -> Loss | None:
    """Return why the evaluator has to restart; None also if its program has failed more than `limit` times."""
    if shape.evaluator is None:
        return None
    candidates = PodSet(pod for pod in _staying(old, shape, pods) if pod.name == shape.evaluator)
    loss = attempt_loss(attempt, candidates, [name for name in gone if name == shape.evaluator])
    if loss is None or (not loss.infrastructure and (old.restarts.evaluator or 0) >= limit):
        return None
    return loss


def start_again(shape: Shape, pods: Sequence[PodView], gone: Collection[str]) -> set[str]:
    """Return the names of the pods that restart after the loss of the failed pods in `pods` and of `gone`."""
    groups = shape.restarts_with or {}
    lost = {pod.name for pod in pods if is_lost(pod)} | {*gone}
    # The members of a group share one frozenset, so that the set comprehension merges each group once.
    again: set[str] = set().union(*{groups[name] for name in lost & groups.keys()})
    # Pods that do not exist yet are created for the new attempt.
    again |= groups.keys() - {pod.name for pod in pods}
    if not again.isdisjoint(shape.decides):
        # The training continues from a checkpoint and also needs the pods whose program had completed.
        again |= {pod.name for pod in pods if pod.succeeded}
    return again


def _staying(old: JobStatus, shape: Shape, pods: Sequence[PodView]) -> list[PodView]:
    """Leave out deleted pods that the operator recreates: pods outside a group, before all pods have run."""
    return [pod for pod in pods if old.all_running_time or shape.all_or_nothing or not pod.deleting]


def told_again(names: Collection[str], of: int) -> str:
    """Describe which pods restart."""
    if len(names) == of:
        return "all start again from the newest checkpoint"
    return f"{some(sorted(names))} {'starts' if len(names) == 1 else 'start'} again, the others continue"


# Failures that recur in every attempt: the image lacks a Python module, or the archive of the code is unusable.

REMEDY = "a retry would fail too: add the module to the image, or, for dtj run, to this Python environment"
_PYTHON = re.compile(r"python[\d.]*")
# Types of volumes whose files are the same in each attempt: a missing Python module stays missing.
_CONSTANT_VOLUMES = frozenset({"configMap", "secret", "downwardAPI", "projected", "emptyDir"})


def is_lasting(
    job: AnyJob, failure: Failure, progress: ProgressStatus | None, artifacts: ArtifactsStatus | None
) -> bool:
    """Return whether the next attempt would lack the same module.

    A job that has made a step or a checkpoint had all modules. For any other job, the first failure is enough if
    modules can only come from the image. If a shell, an init container or a volume may provide modules, the previous
    attempt must have lacked the same module.

    failure: the failure of the present attempt. progress, artifacts: the merged reports of all attempts.
    """
    if failure.failure_class != FailureClass.MODULE_NOT_FOUND:
        return False
    if (progress is not None and progress.step) or (
        artifacts is not None and artifacts.checkpoint is not None
    ):
        return False
    before = job.status.failure
    again = before is not None and (before.failure_class, before.message) == (
        FailureClass.MODULE_NOT_FOUND,
        failure.message,
    )
    return again or _is_from_image_alone(job)


def _is_from_image_alone(job: AnyJob) -> bool:
    if not isinstance(job, Job):
        return False
    roles = [replica for replica in job.given.values() if replica.replicas]
    programs = [own_program(role)[0] for role in roles]
    commands = [command or job.own_command for command in programs] or [job.own_command]
    return all(map(_is_python, commands)) and not any(map(_brings_files, roles))


def _is_python(command: object) -> bool:
    # A user may have edited the spec of the running job to any value.
    word = command[0] if isinstance(command, list) and command else None
    return isinstance(word, str) and _PYTHON.fullmatch(PurePosixPath(word).name) is not None


def _brings_files(role: ReplicaSpec) -> bool:
    """Return whether the role's template has init containers, or volumes whose files may change."""
    pod = role.template.get("spec")
    if not isinstance(pod, Mapping):
        return False
    return bool(pod.get("initContainers")) or any(
        not _CONSTANT_VOLUMES & volume.keys() for volume in _volumes(pod)
    )


def _volumes(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    volumes = pod.get("volumes")
    yield from (
        volume for volume in (volumes if isinstance(volumes, list) else ()) if isinstance(volume, Mapping)
    )
