"""Finds the cause of one pod's end: its termination message, its failure class, and who is at fault.

`failure_policy` asks for the causes of all pods, and decides which cause counts. The functions do not read the job's
stored status.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, cast

from dtj.api.reasons import OperatorFailureClass
from dtj.api.reported import lines, number, take, text
from dtj.api.status import ArtifactsStatus, Failure, ProgressStatus
from dtj.status.pods import Exit, PodSet, PodView
from dtj.status.times import seconds_since
from dtj_trainer.contract import EXIT_COMMAND_NOT_FOUND, Termination
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.contract.tensorflow_output import lost_connection
from dtj_trainer.contract.torch_output import raised

# Read the termination message of a container. dtj-launch writes it, and any other program may write it too.

LOG_LINES = 20
MESSAGE_LENGTH = 4096
_LINE_LENGTH = 1024
_NAME_LENGTH = 253
_MOST = 2**31 - 1
_GATES: Mapping[str, Callable[[object], object]] = {
    "class": lambda value: text(value, 63) or None,
    "message": lambda value: text(value, MESSAGE_LENGTH),
    "role": lambda value: text(value, _NAME_LENGTH),
    "index": lambda value: number(value, 0, _MOST),
    "rank": lambda value: number(value, 0, _MOST),
    "host": lambda value: text(value, _NAME_LENGTH),
    "exitCode": lambda value: number(value, -_MOST, _MOST),
    "signal": lambda value: number(value, 0, _MOST),
    "lastLogLines": lambda value: last_lines(value),
    "progress": lambda value: value if isinstance(value, dict) else None,
    "artifacts": lambda value: value if isinstance(value, dict) else None,
    "recorded": lambda value: value is True or None,
    "restarts": lambda value: value if isinstance(value, dict) else None,
}


def read_termination(end: Exit) -> Termination | None:
    """Return the termination message of dtj-launch; None if the message is no JSON object.

    Invalid values are left out, because any program of the container may write the message.
    """
    try:
        return read_failure(json.loads(end.message))
    except (ValueError, RecursionError):
        return None


def read_failure(message: object) -> Termination | None:
    """Return a pod's report of a failure in the form of a termination message; None if the report is no object."""
    if not isinstance(message, dict):
        return None
    values: dict[str, Any] = {}
    for name, gate in _GATES.items():
        value = message.get(name)
        taken = None if value is None else gate(value)
        if taken is not None:
            values[name] = taken
    return cast(Termination, values)


def last_lines(value: object) -> list[str] | None:
    """Return the last lines that are not empty. Kubernetes 1.20 rejects an empty text in a patch as null."""
    return lines(value, LOG_LINES, _LINE_LENGTH)


def reported(message: Termination | None) -> tuple[ProgressStatus | None, ArtifactsStatus | None]:
    """Return the progress and the artifacts in a termination message."""
    if message is None:
        return None, None
    progress, _ = take(ProgressStatus, message.get("progress"))
    artifacts, _ = take(ArtifactsStatus, message.get("artifacts"))
    return progress, artifacts


# Seconds that the operator waits for a cause after a failure that another failure may have caused.
SETTLE_SECONDS = 5.0
# The node controller reports a dead node after 40 to 50 s without a heartbeat (node-monitor-grace-period).
NODE_SETTLE_SECONDS = 60.0
# Failure classes that the loss of another pod may have caused, with the seconds to wait for that other loss.
_CONSEQUENCES: Mapping[str, float] = {
    FailureClass.CONNECTION_LOST: NODE_SETTLE_SECONDS,
    FailureClass.PEERS_UNREACHABLE: SETTLE_SECONDS,
    FailureClass.SIGNAL: SETTLE_SECONDS,
}
# As _CONSEQUENCES, for a pod that depends on other pods and has no termination message of dtj-launch.
_UNREPORTED_CONSEQUENCES = {**_CONSEQUENCES, FailureClass.APPLICATION_ERROR: SETTLE_SECONDS}
# Failure classes for which no program is at fault: the operator had given up the pod before, or another process held
# the port, which the next attempt does not use.
_NOT_THE_PROGRAMS = frozenset[str]({FailureClass.SUPERSEDED, FailureClass.PORT_IN_USE})
# The kubelet sets this reason on a pod that it evicts.
_EVICTED = "Evicted"
# Messages of evictions that are the fault of the pod's program: it wrote too much data.
_OWN_EVICTION = re.compile(r"ephemeral.(local )?storage|EmptyDir volume", re.IGNORECASE)
# A process that ends by SIGABRT may have failed with an exception: after an uncaught exception, gloo's threads abort
# the ending process.
_ABORTED = signal.SIGABRT.value
# Prefixes of the reasons of a pod that makes room for others, or leaves a drained node. The reasons come from the
# kubelet, from Kueue (WorkloadEvictedDueToPreempted), and from the condition DisruptionTarget, which Kubernetes sets
# before it deletes the pod.
_UNWANTED = (
    "Preempting",
    "WorkloadEvicted",
    "WorkloadDeleted",
    "NoMatchingWorkload",
    "NotAdmitted",
    "EvictionByEvictionAPI",
    "DeletionByTaintManager",
    "PreemptionByScheduler",
    "PreemptionByKubeScheduler",
)
# Reasons of containerd and of the kubelet for a container that ended while its node or its runtime restarted.
_END_UNSEEN = frozenset({"Unknown", "ContainerStatusUnknown"})
# A program reports these classes when other ranks no longer answer.
LOST_OTHERS = frozenset[str]({FailureClass.CONNECTION_LOST, FailureClass.PEERS_UNREACHABLE})
# Once a node is known to be lost, an application error may also follow from the lost node.
_MAY_FOLLOW = frozenset[str]({*_CONSEQUENCES, FailureClass.APPLICATION_ERROR})
# Signals by which a kubelet ends the program of a deleted pod.
_STOPPING = frozenset({signal.SIGTERM.value, signal.SIGKILL.value})
# Allowed difference in seconds between the clocks of a node and of the API server. Both write whole seconds.
_CLOCK_SECONDS = 5.0


@dataclass(frozen=True)
class Loss:
    """The end of an attempt that did not succeed."""

    failure: Failure
    infrastructure: bool
    """Whether the infrastructure caused the loss: a lost pod or node, an eviction or a preemption."""
    settle: float = 0.0
    """Seconds after `finished` in which another pod may turn out to be the cause."""
    finished: str | None = None
    host: str | None = None
    """Host of the rank at fault, when another pod reports the failure."""
    others: frozenset[str] = frozenset()
    """Names of further lost pods. Such a pod caused the loss and is silent, or ended in the same way."""
    nodes: frozenset[str] = frozenset()
    """Names of the nodes that may be at fault."""
    excuse: str = ""
    """Why the loss does not count: another loss, which counts, caused this one."""


def attempt_loss(
    attempt: int, pods: PodSet, missing: Sequence[str], peers: Set[str] = frozenset()
) -> Loss | None:
    """Return why an attempt that has begun can't go on, or None when the attempt can go on.

    pods: the pods of the attempt. missing: names of pods that no longer exist. peers: names of the pods whose program
    (mpirun, a TensorFlow chief, each rank of PyTorch) also fails when the program of another pod fails.
    """
    losses = [loss for pod in pods.unusual if (loss := _pod_loss(attempt, pod, peers))]
    losses += [
        Loss(
            Failure(
                attempt=attempt,
                pod=name,
                failure_class=OperatorFailureClass.POD_LOST,
                message=f"pod {name} no longer exists: the pod or its node was deleted",
            ),
            infrastructure=True,
        )
        for name in missing
    ]
    if not losses:
        return None
    # Prefer a pod that the cluster ended, since its end makes other programs fail. Prefer a failure that can't be the
    # consequence of another failure.
    loss = min(losses, key=lambda loss: (not loss.infrastructure, loss.settle, loss.finished or ""))
    loss = replace(loss, failure=_located(loss, pods))
    if left := _left_early(loss, pods, peers):
        loss = _put_down_to_early_end(loss, left)
    silent = [] if loss.infrastructure else [pod for pod in pods if _led_to(loss, pod, peers)]
    causes = silent or [pod for pod in pods if pod.name == loss.failure.pod and _speaks_against_node(pod)]
    loss = replace(loss, nodes=frozenset(pod.node for pod in causes if pod.node and pod.phase != "Pending"))
    if not silent:
        return loss
    names = frozenset(pod.name for pod in silent)
    if loss.failure.failure_class in LOST_OTHERS and loss.failure.pod not in names:
        loss = replace(loss, failure=_attributed(min(silent, key=lambda pod: pod.name), loss.failure))
    return replace(loss, infrastructure=True, settle=0.0, others=names)


def _speaks_against_node(pod: PodView) -> bool:
    """Return whether the node may be at fault for a pod's loss. A drain or a preemption is not the node's fault."""
    unwanted = ended_as_told(pod) and (pod.deleting or pod.reason.startswith(_UNWANTED))
    return pod.silent or not unwanted


def _left_early(loss: Loss, pods: Sequence[PodView], peers: Set[str]) -> PodView | None:
    """Return the first of the peers that succeeded while another pod failed because it lost its peers."""
    if loss.infrastructure or loss.failure.failure_class not in LOST_OTHERS or any(p.silent for p in pods):
        return None
    ended = [pod for pod in pods if pod.name in peers and is_complete(pod)]
    return min(ended, key=lambda pod: (pod.exit.finished or "" if pod.exit else "", pod.index), default=None)


def _put_down_to_early_end(loss: Loss, pod: PodView) -> Loss:
    """Return the loss for a pod that ended early, and because of which the pod of `loss` failed."""
    early = early_end(loss.failure.attempt or 0, pod)
    message = f"{early.failure.message}; then {describe(loss.failure)}"
    # Still wait a few seconds: a third pod may have failed first, and its end may not be reported yet.
    return replace(
        early,
        failure=early.failure.model_copy(update={"message": message}),
        settle=min(loss.settle, SETTLE_SECONDS),
        finished=loss.finished,
    )


def _led_to(loss: Loss, pod: PodView, peers: Set[str]) -> bool:
    """Return whether a silent, unready or absent pod may have caused the failure of another pod."""
    kind = loss.failure.failure_class
    if kind in LOST_OTHERS:
        # A pending peer counts: the others gave up their wait for a pod without a node or without its image.
        absent = pod.phase == "Pending" and pod.name in peers
        return absent or pod.silent or (pod.running and not pod.ready)
    return pod.silent and kind in _MAY_FOLLOW


def ended_as_told(pod: PodView) -> bool:
    """Return whether a pod ends because of a drain, a preemption or a deletion.

    The cluster stopped the program of such a pod. The exit code shows neither a failure nor a success of the program.
    """
    if pod.disrupted or not pod.deleting:
        return pod.disrupted
    if pod.exit is None or pod.exit.finished is None or pod.told_to_end is None:
        return True
    if pod.exit.signal in _STOPPING and not _ran_out_of_memory(pod.exit):
        # The exit time is no proof, because the node's clock may be wrong. SIGTERM and SIGKILL come from the kubelet.
        return True
    return seconds_since(pod.exit.finished, pod.told_to_end) <= _CLOCK_SECONDS


def _ran_out_of_memory(end: Exit) -> bool:
    if end.reason == "OOMKilled":
        return True
    termination = read_termination(end)
    return termination is not None and termination.get("class") == FailureClass.OOM_KILLED


def is_complete(pod: PodView) -> bool:
    """Return whether the pod's program completed.

    A program that receives SIGTERM may exit with code 0. Such an exit counts only if dtj-launch confirms it.
    """
    if not pod.succeeded or not ended_as_told(pod):
        return pod.succeeded
    termination = read_termination(pod.exit) if pod.exit else None
    return termination is not None and termination.get("exitCode") == 0 and "class" not in termination


def is_lost(pod: PodView) -> bool:
    """Return whether a pod has failed or is being deleted before its completion."""
    return _pod_loss(0, pod) is not None


def _pod_loss(attempt: int, pod: PodView, peers: Set[str] = frozenset()) -> Loss | None:
    if pod.disrupted:
        return _failed(attempt, pod, peers)
    if ended_as_told(pod):
        failure = _failure(attempt, pod, OperatorFailureClass.POD_LOST, f"pod {pod.name} was deleted")
        return Loss(failure, infrastructure=True)
    if pod.succeeded:
        return None
    if pod.phase == "Failed" or pod.exit:
        return _failed(attempt, pod, peers)
    return None


def _failed(attempt: int, pod: PodView, peers: Set[str]) -> Loss:
    if pod.disrupted or pod.exit is None:
        reason = pod.reason or "Failed"
        message = f"pod {pod.name}: {reason}" + (f": {pod.message}" if pod.message else "")
        evicted = reason == _EVICTED
        kind = OperatorFailureClass.EVICTED if evicted else OperatorFailureClass.POD_LOST
        own = evicted and _OWN_EVICTION.search(pod.message) is not None
        return Loss(_failure(attempt, pod, kind, message), infrastructure=not own)
    if pod.reason and pod.exit.signal:
        # The kubelet ended the pod, for example at the activeDeadlineSeconds of its template, and says why.
        message = f"{pod.role} {pod.index} was ended by the kubelet: {pod.reason}: {pod.message}"
        failure = _failure(attempt, pod, FailureClass.SIGNAL, message)
        ended_by = {"exit_code": pod.exit.code, "signal": pod.exit.signal}
        return Loss(failure.model_copy(update=ended_by), infrastructure=False, finished=pod.exit.finished)
    termination = read_termination(pod.exit)
    finished = pod.exit.finished
    if termination is None or "class" not in termination:
        if pod.exit.reason in _END_UNSEEN:
            message = f"{pod.role} {pod.index} was lost: node {pod.node} or its container runtime restarted"
            failure = _failure(attempt, pod, OperatorFailureClass.POD_LOST, message)
            return Loss(
                failure.model_copy(update={"exit_code": pod.exit.code}),
                infrastructure=True,
                finished=finished,
            )
        failure = _exit_failure(attempt, pod, pod.exit, has_peers=len(peers) > 1)
        cause = failure.failure_class or ""
        # Without dtj-launch, it is unknown whether a program failed by itself or because another pod failed.
        uncertain = pod.name in peers or cause in LOST_OTHERS
        settle = _UNREPORTED_CONSEQUENCES.get(cause, 0.0) if uncertain else 0.0
        return Loss(failure, cause in _NOT_THE_PROGRAMS, settle=settle, finished=finished)
    failure_class = termination["class"]
    failure = told_failure(attempt, pod, failure_class, termination)
    if failure.exit_code is None:
        failure = failure.model_copy(update={"exit_code": pod.exit.code})
    settle = _CONSEQUENCES.get(failure_class, 0.0)
    infrastructure = failure_class in _NOT_THE_PROGRAMS
    return Loss(failure, infrastructure, settle=settle, finished=finished, host=termination.get("host"))


def told_failure(attempt: int, pod: PodView, kind: str, told: Termination) -> Failure:
    """Return the failure of a pod as dtj-launch reported the failure. kind: the failure class."""
    return _failure(attempt, pod, kind, told.get("message", kind)).model_copy(
        update={
            "rank": told.get("rank"),
            "exit_code": told.get("exitCode"),
            "signal": told.get("signal"),
            "last_log_lines": told.get("lastLogLines"),
        }
    )


def _exit_failure(attempt: int, pod: PodView, end: Exit, *, has_peers: bool) -> Failure:
    """Describe the end of a container without a dtj-launch message.

    The image has no dtj_trainer, or a process outside the container killed the program.

    has_peers: whether every pod's program is a part of the training, so that one may fail because of another.
    """
    output = end.message.splitlines()
    exceptions = raised(output) if has_peers else []
    if end.reason == "OOMKilled":
        kind, what = (
            FailureClass.OOM_KILLED,
            "ran out of memory: raise the memory limit of the container, or use smaller batches",
        )
    elif end.reason in ("ContainerCannotRun", "StartError") or end.code == EXIT_COMMAND_NOT_FOUND:
        kind, what = FailureClass.COMMAND_NOT_FOUND, f"could not start its command (exit code {end.code})"
    elif exceptions and exceptions[-1].store_port_is_taken:
        kind, what = FailureClass.PORT_IN_USE, f"found its port in use: {exceptions[-1].first_line}"
    elif exceptions and exceptions[-1].follows:
        kind, what = FailureClass.CONNECTION_LOST, f"lost another pod: {exceptions[-1].first_line}"
    elif not end.signal and (lost := lost_connection(output)):
        kind, what = FailureClass.CONNECTION_LOST, f"lost another pod: {lost}"
    elif exceptions and end.signal == _ABORTED:
        kind, what = FailureClass.APPLICATION_ERROR, f"ended with exit code {end.code}"
    elif end.signal:
        kind, what = FailureClass.SIGNAL, f"was ended by signal {end.signal}"
    else:
        why = "" if end.reason in ("", "Error") else f" ({end.reason})"
        kind, what = FailureClass.APPLICATION_ERROR, f"ended with exit code {end.code}{why}"
    lines = last_lines(output)
    return _failure(attempt, pod, kind, f"{pod.role} {pod.index} {what}").model_copy(
        update={"exit_code": end.code, "signal": end.signal, "last_log_lines": lines}
    )


def early_end(attempt: int, pod: PodView) -> Loss:
    """Return the loss for a pod that succeeded while the attempt still needed the pod."""
    message = f"{pod.role} {pod.index} ended with exit code 0 while the other pods still needed it"
    failure = _failure(attempt, pod, FailureClass.APPLICATION_ERROR, message).model_copy(
        update={"exit_code": 0}
    )
    return Loss(failure, infrastructure=False, finished=pod.exit.finished if pod.exit else None)


def _failure(attempt: int, pod: PodView, kind: str, message: str) -> Failure:
    return Failure(
        attempt=attempt,
        role=pod.role,
        index=pod.index,
        pod=pod.name,
        node=pod.node,
        failure_class=kind,
        message=message,
    )


def _located(loss: Loss, pods: Sequence[PodView]) -> Failure:
    """Return the failure with the pod of the rank at fault, if another pod reported the failure."""
    host = (loss.host or "").split(".", 1)[0]
    for pod in pods:
        if host == pod.name:
            return _attributed(pod, loss.failure)
    return loss.failure


def _attributed(pod: PodView, failure: Failure) -> Failure:
    update = {"role": pod.role, "index": pod.index, "pod": pod.name, "node": pod.node}
    return failure.model_copy(update=update)


def describe(failure: Failure) -> str:
    """Describe a failure in a sentence: the place, the cause and the last line of the log."""
    message = failure.message or failure.failure_class or "failed"
    if failure.pod and failure.pod not in message:
        message = f"{failure.source}: {message}"
    if failure.failure_class == FailureClass.APPLICATION_ERROR and failure.last_log_lines:
        message += f"; its last line: {failure.last_log_lines[-1].strip()[:300]}"
    return message
