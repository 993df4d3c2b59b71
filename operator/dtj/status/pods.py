"""Reduce the manifest of a pod to the fields on which the status of a job depends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

from dtj.api.identity import LABEL_ATTEMPT, LABEL_INDEX, LABEL_ROLE, LABEL_ROUNDS
from dtj.api.mpijob import INDEX_LABEL
from dtj.api.pod_template import TRAINER_CONTAINER
from dtj.api.reasons import Reason
from dtj.api.scheduling_rules import KUEUE_QUEUE
from dtj.status.times import read_time
from dtj_trainer.contract import Rounds

# Values of `status.reason` of pods that the cluster ended, and reasons of the condition DisruptionTarget.
_DISRUPTIONS = frozenset(
    {
        "Evicted",
        "Preempting",
        "PreemptionByScheduler",
        "PreemptionByKubeScheduler",
        "NodeLost",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "TerminationByKubelet",
        "DeletionByTaintManager",
        "DeletionByPodGC",
        "EvictionByEvictionAPI",
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
    }
)
_MOST_NAMES = 16
_ROUNDS = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a container."""

    code: int
    signal: int | None
    reason: str
    message: str
    finished: str | None


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a job."""

    name: str
    uid: str
    role: str
    index: int
    attempt: int
    phase: str
    ready: bool
    deleting: bool
    scheduled: bool
    node: str | None
    ip: str | None
    reason: str
    """Why the cluster ended the pod; empty if the cluster did not."""
    message: str
    disrupted: bool
    """Whether the cluster ended the pod."""
    waiting: tuple[str, str] | None
    """Reason and message of a container that can't start or keep running, or of a pod that no node takes."""
    exit: Exit | None
    """The end of the container that trains, or of an init container whose failure failed the pod."""
    delete_by: str | None = None
    """When the grace period of a deleted pod ends."""
    grace_seconds: float = 0.0
    """Grace period of a deleted pod, in seconds."""
    silent: bool = False
    """Whether the node no longer reports the state of the pod."""
    scheduled_at: str | None = None
    """When the pod got its node."""
    gates: tuple[str, ...] = ()
    """Names of the scheduling gates that hold the pod."""
    queue: str | None = None
    """The LocalQueue of Kueue in which the pod waits or waited."""
    devices: tuple[tuple[str, int], ...] = ()
    """Extended resources of the containers, for example (nvidia.com/gpu, 2)."""
    finalizers: tuple[str, ...] = ()
    """The finalizers that keep a deleted pod whose containers have ended."""
    unstarted: bool = False
    """Whether the pod has a node, and no container has begun."""
    ended: bool = False
    """Whether all containers have ended. The kubelet sets the phase a second or more later."""

    rounds: Rounds | None = None
    """The restarts of the job when the pod was made, if the pod restarts its ranks in place."""

    @property
    def has_node(self) -> bool:
        """Return whether the pod uses resources of a node: from its scheduling to the end of its containers."""
        return self.scheduled and not self.ended

    @property
    def running(self) -> bool:
        """Return whether the pod runs and is not being deleted."""
        return self.phase == "Running" and not self.deleting and self.exit is None

    @property
    def told_to_end(self) -> datetime | None:
        """Return when the deletion of the pod was requested; None if the pod is not being deleted.

        A grace period may be so long that its end is after the year 9999. Then the time is not known either.
        """
        if self.delete_by is None:
            return None
        try:
            return read_time(self.delete_by) - timedelta(seconds=self.grace_seconds)
        except (ValueError, OverflowError):
            return None

    @property
    def succeeded(self) -> bool:
        """Return whether the container that trains ended with exit code 0. Sidecars may still run."""
        return self.phase == "Succeeded" or (self.exit is not None and self.exit.code == 0)

    @property
    def unusual(self) -> bool:
        """Return whether the pod is not in the normal state of a training: running, ready, and not about to end."""
        return not (self.running and self.ready) or bool(
            self.disrupted or self.silent or self.ended or self.waiting or self.gates or self.reason
        )


class PodSet(tuple[PodView, ...]):
    """Pods at one moment, with facts about all of them, each of which is computed once.

    A view returns the same set until one of its pods changes. A pass that a report or a write of the status causes
    then looks at the unusual pods alone, also in a job of thousands of pods.
    """

    @cached_property
    def unusual(self) -> PodSet:
        """The pods that are not in the normal state of a training: see `PodView.unusual`."""
        return PodSet(pod for pod in self if pod.unusual)

    @cached_property
    def named(self) -> Mapping[str, PodView]:
        """The pods by name."""
        return {pod.name: pod for pod in self}

    @cached_property
    def attempts(self) -> frozenset[int]:
        """The attempts to which the pods belong."""
        return frozenset(pod.attempt for pod in self)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The number of pods of each role."""
        return Counter(pod.role for pod in self)


def view_pod(pod: Mapping[str, Any]) -> PodView:
    """Read the manifest of a pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    containers = {c["name"]: c for c in status.get("containerStatuses") or []}
    init = {c["name"]: c for c in status.get("initContainerStatuses") or []}
    scheduled = conditions.get("PodScheduled", {})
    disruption = _disruption(conditions)
    reason = status.get("reason") or ""
    if disruption:
        reason = reason or disruption.get("reason") or "Disrupted"
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        role=labels.get(LABEL_ROLE, ""),
        index=int(labels.get(LABEL_INDEX) or labels.get(INDEX_LABEL) or 0),
        attempt=int(labels.get(LABEL_ATTEMPT, 0)),
        phase=status.get("phase") or "Pending",
        ready=conditions.get("Ready", {}).get("status") == "True",
        deleting=metadata.get("deletionTimestamp") is not None,
        scheduled=scheduled.get("status") == "True",
        node=(pod.get("spec") or {}).get("nodeName"),
        ip=status.get("podIP"),
        reason=reason,
        message=status.get("message") or disruption.get("message") or "",
        disrupted=reason in _DISRUPTIONS or bool(disruption),
        waiting=_waiting(scheduled, init.values(), containers.values()),
        exit=_exit(containers.get(TRAINER_CONTAINER, {}))
        # A native sidecar is an init container that may crash and restart. Its failure counts only if the pod failed.
        or (_init_failure(init) if status.get("phase") == "Failed" else None),
        delete_by=metadata.get("deletionTimestamp"),
        grace_seconds=float(metadata.get("deletionGracePeriodSeconds") or 0),
        silent=status.get("phase") == "Unknown" or _is_silent(pod, conditions),
        scheduled_at=scheduled.get("lastTransitionTime") if scheduled.get("status") == "True" else None,
        gates=_few(gate["name"] for gate in (pod.get("spec") or {}).get("schedulingGates") or []),
        queue=labels.get(KUEUE_QUEUE),
        devices=_few(_devices(pod)),
        finalizers=_finalizers(metadata) if status.get("phase") in ("Succeeded", "Failed") else (),
        unstarted=scheduled.get("status") == "True"
        and (status.get("phase") or "Pending") == "Pending"
        and not any(map(_has_begun, (*init.values(), *containers.values()))),
        rounds=read_rounds(labels),
        ended=status.get("phase") in ("Succeeded", "Failed") or _all_ended(pod, containers.values()),
    )


def read_rounds(labels: Mapping[str, str]) -> Rounds | None:
    """Read LABEL_ROUNDS. Any user of the namespace may have written it."""
    found = _ROUNDS.fullmatch(labels.get(LABEL_ROUNDS) or "")
    return Rounds(before=int(found[1]), limit=int(found[2])) if found else None


def _few(given: Iterable[T]) -> tuple[T, ...]:
    """Return the first few entries: a user who may create pods can give a pod a megabyte of gates or finalizers."""
    return tuple(islice(given, _MOST_NAMES))


def _finalizers(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    return _few(metadata.get("finalizers") or ()) if metadata.get("deletionTimestamp") is not None else ()


def _has_begun(container: Mapping[str, Any]) -> bool:
    return bool(
        (container.get("state") or {}).keys() & {"running", "terminated"} or container.get("lastState")
    )


def is_disrupted(status: Mapping[str, Any]) -> bool:
    """Return whether the cluster ends a pod with this status: an eviction or a preemption."""
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    return status.get("reason") in _DISRUPTIONS or bool(_disruption(conditions))


def _disruption(conditions: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the condition that the cluster ends the pod; empty if it does not.

    Kueue sets TerminationTarget on the pods of a group that it preempts.
    """
    found = conditions.get("DisruptionTarget") or conditions.get("TerminationTarget") or {}
    return found if found.get("status") == "True" else {}


def _all_ended(pod: Mapping[str, Any], containers: Collection[Mapping[str, Any]]) -> bool:
    """Return whether all containers have ended. Native sidecars are init containers, which the kubelet ends later."""
    wanted = len((pod.get("spec") or {}).get("containers") or ())
    return 0 < wanted == sum(_exit(container) is not None for container in containers)


def _devices(pod: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for container in (pod.get("spec") or {}).get("containers") or []:
        for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            # Only the names of extended resources have a domain. Their amounts are whole numbers.
            if "/" in name and str(amount).isdigit():
                yield name, int(amount)


def _is_silent(pod: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the node of the pod is silent.

    For a silent node, the node controller sets only Ready to False. A kubelet always sets ContainersReady with Ready,
    unless a readiness gate is closed.
    """
    ready, containers = (conditions.get(kind, {}).get("status") for kind in ("Ready", "ContainersReady"))
    gates = (pod.get("spec") or {}).get("readinessGates")
    return ready == "False" and containers == "True" and not gates


def _waiting(
    scheduled: Mapping[str, Any], init: Iterable[Mapping[str, Any]], containers: Iterable[Mapping[str, Any]]
) -> tuple[str, str] | None:
    if scheduled.get("status") == "False":
        return str(scheduled.get("reason") or Reason.UNSCHEDULABLE), str(scheduled.get("message") or "")
    for container in (*init, *containers):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason") or ""
        if reason and reason not in ("ContainerCreating", "PodInitializing"):
            last = _exit({"state": container.get("lastState")})
            if reason == Reason.CRASH_LOOP_BACK_OFF and last is not None:
                # Do not use the kubelet's message: it differs after each crash, and each change would write a status.
                return reason, f"container {container['name']} ends again and again, last {_exit_code(last)}"
            return str(reason), str(waiting.get("message") or "")
    ends = {container["name"]: end for container in containers if (end := _exit(container)) is not None}
    if ends and TRAINER_CONTAINER not in ends:
        name, end = next(iter(ends.items()))
        return (
            Reason.SIDECAR_ENDED,
            f"container {name} ended {_exit_code(end)}: the pod is not ready without it",
        )
    return None


def _exit_code(end: Exit) -> str:
    why = "" if end.reason in ("", "Error", "Completed") else f" ({end.reason})"
    return f"with exit code {end.code}{why}"


def _init_failure(init: Mapping[str, Mapping[str, Any]]) -> Exit | None:
    """Return the end of a failed init container. A failed pod without a known end counts as ended by the cluster."""
    for name, container in init.items():
        end = _exit(container)
        if end is not None and end.code != 0:
            reason = end.reason if end.reason == "OOMKilled" else f"init container {name}"
            return replace(end, reason=reason)
    return None


def _exit(container: Mapping[str, Any]) -> Exit | None:
    terminated = (container.get("state") or {}).get("terminated")
    if not terminated:
        return None
    code = int(terminated.get("exitCode", 0))
    return Exit(
        code=code,
        signal=terminated.get("signal") or (code - 128 if 128 < code < 160 else None),
        reason=str(terminated.get("reason") or ""),
        message=str(terminated.get("message") or ""),
        finished=terminated.get("finishedAt"),
    )
