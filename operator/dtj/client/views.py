"""What the client tells of a job besides the job itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dtj.api.identity import KIND
from dtj.api.pod_template import TRAINER_CONTAINER
from dtj.api.spec import ROLES
from dtj.client.resource import DistributedTrainingJob


@dataclass(frozen=True)
class JobEvent:
    """One Kubernetes event of a job or one of its pods."""

    time: datetime | None
    """When it happened last."""
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    count: int
    object: str
    """Kind and name, e.g. Pod/fashion-mnist-worker-0."""


@dataclass(frozen=True)
class PodUsage:
    """What the container that trains uses of a pod's node, as Kubernetes quantities, e.g. 250m and 512Mi."""

    cpu: str
    memory: str


@dataclass(frozen=True)
class LogLine:
    """One line that a job printed."""

    source: str
    """Who printed it: `rank 0`, `launcher-0`, `worker-1`."""
    text: str
    time: datetime | None = None
    """None for a line from the bucket."""


def events_of(job: DistributedTrainingJob, events: Iterable[Mapping[str, Any]]) -> list[JobEvent]:
    """Those of a namespace's events that are of a job or its pods, oldest first."""
    names = re.compile(rf"{KIND}/{job.name}|Pod/{job.name}-({'|'.join(ROLES)})-\d+")
    begun = datetime.fromisoformat(job.metadata.creation_timestamp or "0001-01-01T00:00:00Z")
    # An earlier job of this name may have left events.
    mine = [
        event
        for event in map(read_event, events)
        if names.fullmatch(event.object) and (event.time or begun) >= begun
    ]
    return sorted(mine, key=lambda event: event.time or begun)


def usage_of(metrics: Iterable[Mapping[str, Any]]) -> dict[str, PodUsage]:
    """PodMetrics by the name of the pod."""
    return {
        pod["metadata"]["name"]: PodUsage(container["usage"]["cpu"], container["usage"]["memory"])
        for pod in metrics
        for container in pod.get("containers") or []
        if container["name"] == TRAINER_CONTAINER
    }


def read_event(event: Mapping[str, Any]) -> JobEvent:
    """Read an event's manifest, of either version of the events API."""
    series = event.get("series") or {}
    about = event["involvedObject"]
    time = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return JobEvent(
        time=datetime.fromisoformat(time) if time else None,
        type=event.get("type") or "Normal",
        reason=event.get("reason") or "",
        message=event.get("message") or "",
        count=series.get("count") or event.get("count") or 1,
        object=f"{about.get('kind')}/{about.get('name')}",
    )
