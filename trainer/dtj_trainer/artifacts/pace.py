"""How hard uploads may drive the network and the processors: gently beside a program, at full speed after its end."""

from __future__ import annotations

import threading

CONNECTIONS = 8
"""Of one upload when no program runs beside it."""


class Pace:
    """The connections of each upload of a process, and the bytes a second of all of them. May be shared by threads.

    It begins at full speed.
    """

    def __init__(self) -> None:
        self.closed = threading.Event()
        """Set for good: nothing more is sent."""

    @property
    def connections(self) -> int:
        """How many parts of one upload may be on their way."""
        return CONNECTIONS

    def take(self, amount: int) -> None:
        """Wait until so many bytes more may be sent."""

    def rest(self, seconds: float) -> None:
        """Wait before another try; less when `closed` is set."""
        self.closed.wait(seconds)
