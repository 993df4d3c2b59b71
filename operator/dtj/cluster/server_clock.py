"""The current time by the API server's clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

_log = logging.getLogger(__name__)
# The clocks of healthy API servers differ by up to this much. An answer within the tolerance does not move the clock.
_TOLERANCE_SECONDS = 2.0
# A Date header has whole seconds. The real time was up to one second later.
_RESOLUTION_SECONDS = 1.0
_WARNING_SECONDS = 600.0


class ServerClock:
    """Starts with the operator's own clock, and then follows the Date headers of the API server's answers.

    The operator compares the current time with times that the API server wrote, such as creation and deletion times.
    Thread-safe.
    """

    def __init__(self, seconds: Callable[[], float], now: datetime) -> None:
        """seconds: a monotonic clock. now: the time by the operator's own clock."""
        self.seconds = seconds
        self._ahead = now.timestamp() - seconds()
        """The Unix time at which the monotonic clock was 0."""
        self._warned_at = float("-inf")

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.fromtimestamp(self.seconds() + self._ahead, UTC)

    def see(self, date: str | None, sent: float) -> None:
        """Take the Date header of an answer. sent: the value of `seconds` when the request was sent."""
        written = _written(date)
        if written is None:
            return
        # The server wrote the header between the sending of the request and this moment.
        earliest = written - self.seconds()
        latest = written + _RESOLUTION_SECONDS - sent
        ahead = self._ahead
        if earliest - _TOLERANCE_SECONDS <= ahead <= latest + _TOLERANCE_SECONDS:
            return
        self._ahead = min(max(ahead, earliest), latest)
        if self.seconds() - self._warned_at >= _WARNING_SECONDS:
            self._warned_at = self.seconds()
            moved = self._ahead - ahead
            _log.warning(
                "the API server's clock is %.0f s %s the operator's: the operator uses the API server's clock",
                abs(moved),
                "ahead of" if moved > 0 else "behind",
            )


@lru_cache(maxsize=16)
def _written(date: str | None) -> float | None:
    """Convert a Date header to Unix time; None for a missing or unreadable header."""
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None
