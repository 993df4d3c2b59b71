"""Times as the API writes them: RFC 3339, UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime


def written_time(time: datetime) -> str:
    """Write a time as the API does."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(text: str) -> datetime:
    """Read a time that the API wrote."""
    return datetime.fromisoformat(text)


def seconds_since(text: str, now: datetime) -> float:
    """Return the seconds from a written time to `now`."""
    return (now - read_time(text)).total_seconds()
