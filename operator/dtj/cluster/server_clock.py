"""What time it is by the clock of the API server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

_log = logging.getLogger(__name__)
# The clocks of several API servers differ by as much without a fault. Within it, no answer moves the clock.
_TOLERANCE_SECONDS = 2.0
# A Date has whole seconds: it was written within one after it.
_RESOLUTION_SECONDS = 1.0
_TELLING_SECONDS = 600.0


class ServerClock:
    """Begins with the operator's own clock, and follows the Date header of the API server's answers from then on.

    The API server writes the times with which the operator compares: when a pod is to be gone, when a job was made.
    Several threads may use it.
    """

    def __init__(self, seconds: Callable[[], float], now: datetime) -> None:
        """seconds: of a clock that nobody sets. now: the time by the operator's own clock."""
        self.seconds = seconds
        self._ahead = now.timestamp() - seconds()
        """Seconds from that clock's 0, in Unix time."""
        self._told = float("-inf")

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.fromtimestamp(self.seconds() + self._ahead, UTC)

    def see(self, date: str | None, sent: float) -> None:
        """An answer with this Date header has come. sent: `seconds` when its request left."""
        written = _written(date)
        if written is None:
            return
        # The server wrote the header after the request left, and before now.
        earliest = written - self.seconds()
        latest = written + _RESOLUTION_SECONDS - sent
        ahead = self._ahead
        if earliest - _TOLERANCE_SECONDS <= ahead <= latest + _TOLERANCE_SECONDS:
            return
        self._ahead = min(max(ahead, earliest), latest)
        if self.seconds() - self._told >= _TELLING_SECONDS:
            self._told = self.seconds()
            moved = self._ahead - ahead
            _log.warning(
                "the API server's clock is %.0f s %s the operator's: times are by the API server's",
                abs(moved),
                "ahead of" if moved > 0 else "behind",
            )


@lru_cache(maxsize=16)
def _written(date: str | None) -> float | None:
    """A Date header in Unix time; None where it has none that can be read."""
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None
