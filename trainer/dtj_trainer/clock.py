"""The format of times in files and messages. Standard library only."""

from __future__ import annotations

from datetime import UTC, datetime


def now_text() -> str:
    """Return the current time in RFC 3339, UTC, with milliseconds."""
    return _text(datetime.now(UTC))


def text_of(seconds: float) -> str:
    """Return a time in seconds since 1970 as `now_text` does. Raises ValueError, OverflowError or OSError."""
    return _text(datetime.fromtimestamp(seconds, UTC))


def _text(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(text: str) -> float:
    """Return a time of `now_text` in seconds since 1970; 0 for another text."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
