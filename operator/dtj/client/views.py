"""What the client tells of a job besides the job itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


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
class LogLine:
    """One line that a job printed."""

    source: str
    """Who printed it: `rank 0`, `launcher-0`, `worker-1`."""
    text: str
    time: datetime | None = None
    """None for a line from the bucket."""


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
