"""The jobs that hold a part of the nodes that they need, from what the operator sees of all jobs and pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from dtj.api.managed_by import other_manager_of
from dtj.api.scheduling import Gang
from dtj.api.status import Phase
from dtj.reconcile.view import Key, View
from dtj.status.giving_way import GAVE_WAY
from dtj.status.pods import PodView
from dtj.status.times import read_time
from dtj.status.turns import NO_RIVAL, Contender, Turn, turn

_STARTING = (Phase.PENDING, Phase.STARTING, Phase.RESTARTING)
_DEFAULT_ACCELERATOR = "nvidia.com/gpu"
# What every pod needs some of: jobs that ask for nothing else compete for that.
_COMMON = ("cpu", "memory", "ephemeral-storage")


def look_around(
    view: View,
    key: Key,
    manifest: Mapping[str, Any],
    pods: Sequence[PodView],
    now: datetime,
    patience: float,
) -> Turn:
    """Whether a job goes on, gives way, or waits. pods: its own. patience: seconds; 0: it never gives way."""
    mine = contender(key, manifest, pods) if patience else None
    if mine is None or (mine.stuck_since is None and not mine.gave_way):
        return NO_RIVAL
    return turn(mine, _others(view, key), now, patience)


def _others(view: View, mine: Key) -> Iterator[Contender]:
    for key in view.active():
        manifest = view.job(key) if key != mine else None
        if manifest is None:
            continue
        uid = manifest["metadata"]["uid"]
        try:
            found = contender(key, manifest, [pod.view for pod in view.pods(key) if pod.owner == uid])
        except (AttributeError, TypeError, ValueError):
            continue  # it has not the resource's form, and is about to be told so
        if found is not None:
            yield found


def contender(key: Key, manifest: Mapping[str, Any], pods: Sequence[PodView]) -> Contender | None:
    """What the other jobs see of one; None of one that takes no part: all of it has run, or others place its pods.

    Read without its model, which checks every field: a full cluster has many of them.
    """
    metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status") or {}
    policy = spec.get("runPolicy") or {}
    made = metadata.get("creationTimestamp")
    if (
        made is None
        or metadata.get("deletionTimestamp")
        or status.get("allRunningTime")
        or status.get("phase") not in _STARTING
        or policy.get("suspend")
        or other_manager_of(manifest)
        or (policy.get("schedulingPolicy") or {}).get("gang", Gang.NONE) != Gang.NONE
    ):
        return None
    gave_way = status.get("gaveWay") or {}
    staying = [pod for pod in pods if not pod.deleting and pod.phase not in ("Succeeded", "Failed")]
    refused_since, holds = _refused_since(staying), any(pod.scheduled for pod in staying)
    return Contender(
        name="/".join(key),
        uid=metadata["uid"],
        turn=read_time(gave_way.get("time") or made),
        kinds=_kinds(spec),
        times=int(gave_way.get("times") or 0),
        stuck_since=refused_since if holds else None,
        starved_since=None if holds else refused_since,
        gave_way=bool(gave_way) and not staying and _reason(status) in (GAVE_WAY, "PodsEnding"),
    )


def _refused_since(pods: Sequence[PodView]) -> datetime | None:
    """When the scheduler did something for them last, of pods of which some get no node."""
    refused = [pod for pod in pods if pod.waiting is not None and pod.waiting[0] == "Unschedulable"]
    times = [read_time(pod.judged) for pod in pods if pod.judged is not None]
    return max(times) if refused and times else None


def _kinds(spec: Mapping[str, Any]) -> frozenset[str]:
    """The resources that the job's pods want besides those that all want."""
    accelerator = (spec.get("accelerator") or {}).get("resourceName") or _DEFAULT_ACCELERATOR
    wanted: set[str] = set()
    for replica in (spec.get("replicaSpecs") or {}).values():
        resources = (replica or {}).get("resources") or {}
        wanted |= {*(resources.get("requests") or {}), *(resources.get("limits") or {})}
        wanted |= {accelerator} if (replica or {}).get("gpus") else set()
    return frozenset(wanted.difference(_COMMON)) or frozenset({"cpu"})


def _reason(status: Mapping[str, Any]) -> str | None:
    conditions = status.get("conditions") or []
    return next((c["reason"] for c in conditions if c["type"] == "Running"), None)
