"""Pods, events, use of resources and log lines as the SDK returns them, read from objects of the API. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dtj.api.errors import Unusable
from dtj.api.identity import KIND
from dtj.api.pod_template import TRAINER_CONTAINER
from dtj.api.spec import ROLES
from dtj.api.status import Condition, ConditionStatus, ConditionType
from dtj.client.resource import DistributedTrainingJob
from dtj.status.pods import view_pod


@dataclass(frozen=True)
class Pod:
    """A pod of a job."""

    name: str
    uid: str
    role: str
    index: int
    attempt: int
    """The attempt in which the pod was created."""
    node: str | None
    """The name of the pod's node; None until the pod has a node."""
    phase: str
    """The phase in Kubernetes: Pending, Running, Succeeded, Failed or Unknown."""
    ready: bool
    deleting: bool
    disrupted: bool
    """Whether the cluster ended the pod, e.g. by an eviction."""
    exit_code: int | None
    """The exit code of the container that trains; None until that container has ended."""
    signal: int | None
    """The signal that ended the container that trains; None if no signal ended the container."""
    reason: str
    """Why the pod waits or has ended, in the words of Kubernetes, e.g. ImagePullBackOff or OOMKilled; else empty."""
    message: str
    """The message of Kubernetes for the reason; else empty."""

    @property
    def running(self) -> bool:
        """Whether the container that trains runs, and no deletion of the pod has begun."""
        return self.phase == "Running" and not self.deleting and self.exit_code is None


@dataclass(frozen=True)
class LogQuery:
    """Selects lines of the output of a job; by default all lines. Raises Unusable for contradictory fields."""

    role: str | None = None
    """Only replicas of this role."""
    index: int | None = None
    """Only this replica of the role."""
    rank: int | None = None
    """Only this rank."""
    follow: bool = False
    """Whether to follow the output, over restarts, until the job has finished."""
    tail: int | None = None
    """The number of last lines of each pod; None means all lines."""
    attempt: int | None = None
    """The number of an earlier attempt, whose lines are in the bucket."""
    tail_bytes: int | None = None
    """With `tail`: about how many bytes are read of each log in the bucket or on this machine; None: no limit."""
    round: int | None = None
    """Only the lines of this start of the ranks in the pods of the attempt: 0 is the first, 1 the first restart in
    place. `follow` then ends with the round, and `tail_bytes` has no effect."""

    def __post_init__(self) -> None:
        if self.rank is not None and (self.role is not None or self.index is not None):
            raise Unusable(
                "a rank can't be combined with a role or an index", "give the rank alone, or role and index"
            )
        if self.index is not None and self.role is None:
            raise Unusable("an index needs a role", "e.g. role worker, index 1")
        if self.follow and self.attempt is not None:
            raise Unusable(
                "only the present attempt can be followed", "leave out either the attempt or follow"
            )


ALL_LINES = LogQuery()


@dataclass(frozen=True)
class JobEvent:
    """One Kubernetes event of a job or one of its pods."""

    time: datetime | None
    """The time of the last occurrence."""
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    count: int
    object: str
    """Kind and name of the object of the event, e.g. Pod/fashion-mnist-worker-0."""


@dataclass(frozen=True)
class PodUsage:
    """The usage of the container that trains, as Kubernetes quantities, e.g. 250m and 512Mi."""

    cpu: str
    memory: str


@dataclass(frozen=True)
class LogLine:
    """One line that a job printed."""

    source: str
    """The rank or replica that printed the line: `rank 0`, `launcher-0`, `worker-1`."""
    text: str
    time: datetime | None = None
    """The time of the line; None for a line from the bucket."""


def events_of(job: DistributedTrainingJob, events: Iterable[Mapping[str, Any]]) -> list[JobEvent]:
    """Select the events of a job and its pods from the events of a namespace, oldest first."""
    names = re.compile(rf"{KIND}/{job.name}|Pod/{job.name}-({'|'.join(ROLES)})-\d+")
    created = datetime.fromisoformat(job.metadata.creation_timestamp or "0001-01-01T00:00:00Z")
    # Leave out the events of an earlier job with the same name.
    own = [
        event
        for event in map(read_event, events)
        if names.fullmatch(event.object) and (event.time or created) >= created
    ]
    return sorted(own, key=lambda event: event.time or created)


def pod_of(manifest: Mapping[str, Any]) -> Pod:
    """Parse the manifest of a pod."""
    view = view_pod(manifest)
    reason, message = view.waiting or ("", "")
    if view.exit is not None:
        reason, message = view.exit.reason, ""
    if view.disrupted:
        reason, message = view.reason, view.message
    return Pod(
        name=view.name,
        uid=view.uid,
        role=view.role,
        index=view.index,
        attempt=view.attempt,
        node=view.node,
        phase=view.phase,
        ready=view.ready,
        deleting=view.deleting,
        disrupted=view.disrupted,
        exit_code=view.exit.code if view.exit else None,
        signal=view.exit.signal if view.exit else None,
        reason=reason,
        message=message,
    )


def usage_of(metrics: Iterable[Mapping[str, Any]]) -> dict[str, PodUsage]:
    """Return the usage by name of the pod. metrics: PodMetrics of metrics-server."""
    return {
        pod["metadata"]["name"]: PodUsage(container["usage"]["cpu"], container["usage"]["memory"])
        for pod in metrics
        for container in pod.get("containers") or []
        if container["name"] == TRAINER_CONTAINER
    }


def event_of_condition(name: str, condition: Condition) -> JobEvent:
    """Return the last change of a condition of a job as an event."""
    holds = condition.status is ConditionStatus.TRUE
    return JobEvent(
        time=datetime.fromisoformat(condition.last_transition_time),
        type="Warning" if holds and condition.type is ConditionType.FAILED else "Normal",
        reason=condition.reason,
        message=condition.message or f"{condition.type} is {condition.status}",
        count=1,
        object=f"{KIND}/{name}",
    )


def read_event(event: Mapping[str, Any]) -> JobEvent:
    """Parse the manifest of an event of either version of the events API."""
    series = event.get("series") or {}
    involved = event["involvedObject"]
    time = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return JobEvent(
        time=datetime.fromisoformat(time) if time else None,
        type=event.get("type") or "Normal",
        reason=event.get("reason") or "",
        message=event.get("message") or "",
        count=series.get("count") or event.get("count") or 1,
        object=f"{involved.get('kind')}/{involved.get('name')}",
    )
