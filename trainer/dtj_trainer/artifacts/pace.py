"""Limits the load of uploads on network and processors: gentle beside a program, and full speed after its end."""

from __future__ import annotations

import threading
import time

CONNECTIONS = 8
"""Parallel parts of one upload when no program runs beside it."""
CONNECTIONS_BESIDE_PROGRAM = 2
BYTES_PER_SECOND = 40e6
"""The limit of all uploads of a process beside a program. Where 500 MB cost 1 s of a core, this is 8 % of a core."""


class Reservations:
    """A rate limit in bytes a second. A sender reserves bytes and learns how long to wait."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    def reserve(self, amount: int, now: float) -> float:
        """Reserve the next slot for `amount` bytes; return the seconds until it begins. `now`: monotonic seconds."""
        start = max(now, self._free_at)
        self._free_at = start + amount / self._rate
        return start - now


class Pace:
    """The parallel parts of each upload, and the bytes a second of all uploads of a process. Thread-safe."""

    def __init__(self, *, beside_program: bool = False, bytes_per_second: float = 0.0) -> None:
        """`beside_program`: gentle until `hurry`. `bytes_per_second`: the limit until `hurry`; 0 means no limit."""
        self._hurried = threading.Event()
        self._closed = threading.Event()
        self._reservations = Reservations(bytes_per_second) if bytes_per_second else None
        self._lock = threading.Lock()
        if not beside_program:
            self._hurried.set()

    @property
    def gentle(self) -> bool:
        """Return whether a program runs beside the uploads."""
        return not self._hurried.is_set()

    @property
    def connections(self) -> int:
        """Return how many parts of one upload may be in flight."""
        return CONNECTIONS_BESIDE_PROGRAM if self.gentle else CONNECTIONS

    @property
    def closed(self) -> bool:
        """Return whether `close` was called, so that nothing more is sent."""
        return self._closed.is_set()

    def take(self, amount: int) -> None:
        """Wait until `amount` more bytes may be sent."""
        if self._reservations and self.gentle:
            with self._lock:
                delay = self._reservations.reserve(amount, time.monotonic())
            self._hurried.wait(delay)

    def rest(self, seconds: float) -> None:
        """Wait before another try. `close` ends the wait."""
        self._closed.wait(seconds)

    def hurry(self) -> None:
        """Upload at full speed from now on. Call it after the program has ended and the sync loops were informed.

        An upload in progress raises HandedOver, so that the loop's next thread, which has normal priority, sends the
        rest.
        """
        self._hurried.set()

    def close(self) -> None:
        """Stop all sending."""
        self._closed.set()
        self._hurried.set()
