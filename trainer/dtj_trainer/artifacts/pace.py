"""How hard uploads may drive the network and the processors: gently beside a program, at full speed after its end."""

from __future__ import annotations

import threading
import time

CONNECTIONS = 8
"""Of one upload when no program runs beside it."""
CONNECTIONS_BESIDE_PROGRAM = 2
BYTES_PER_SECOND = 40e6
"""What all uploads of a process send beside a program. Where 500 MB take 1 s of a core, this is 8 % of a core."""


class Reservations:
    """A rate in bytes a second: who wants to send learns when its turn is."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    def reserve(self, amount: int, now: float) -> float:
        """Take the next turn for so many bytes; the seconds until then. `now`: monotonic seconds."""
        start = max(now, self._free_at)
        self._free_at = start + amount / self._rate
        return start - now


class Pace:
    """The connections of each upload of a process, and the bytes a second of all. May be shared by threads."""

    def __init__(self, *, beside_program: bool = False, bytes_per_second: float = 0.0) -> None:
        """`beside_program`: gentle until `hurry`. `bytes_per_second` is the limit until then; 0 is none."""
        self._hurried = threading.Event()
        self._closed = threading.Event()
        self._reservations = Reservations(bytes_per_second) if bytes_per_second else None
        self._lock = threading.Lock()
        if not beside_program:
            self._hurried.set()

    @property
    def gentle(self) -> bool:
        """Whether a program runs beside the uploads."""
        return not self._hurried.is_set()

    @property
    def connections(self) -> int:
        """How many parts of one upload may be on their way."""
        return CONNECTIONS_BESIDE_PROGRAM if self.gentle else CONNECTIONS

    @property
    def closed(self) -> bool:
        """Whether nothing more is sent, for good."""
        return self._closed.is_set()

    def take(self, amount: int) -> None:
        """Wait until so many bytes more may be sent."""
        if self._reservations and self.gentle:
            with self._lock:
                delay = self._reservations.reserve(amount, time.monotonic())
            self._hurried.wait(delay)

    def rest(self, seconds: float) -> None:
        """Wait so many seconds before another try; `close` ends the wait."""
        self._closed.wait(seconds)

    def hurry(self) -> None:
        """Go at full speed from now on: the program has ended, and the loops know it.

        An upload under way stops with HandedOver, so that the loop's next thread, which is not idle, sends the rest.
        """
        self._hurried.set()

    def close(self) -> None:
        """Let nothing more be sent."""
        self._closed.set()
        self._hurried.set()
