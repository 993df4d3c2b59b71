"""The format of times in files and messages. Standard library only."""

from __future__ import annotations

from datetime import UTC, datetime


def now_text() -> str:
    """Return the current time in RFC 3339, UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
