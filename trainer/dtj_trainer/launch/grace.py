"""The one deadline of a pod that is told to stop. It counts from the arrival of the signal.

All that still talks to the store ends by then: the last upload, the history's record, the end of tracking, and the
aborts of incomplete uploads. The kubelet kills the pod after its grace period, whatever is left.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable

from dtj_trainer import contract

REPORT_SECONDS = 10.0
"""Seconds of the grace period that the last upload leaves to what follows it."""
EXIT_SECONDS = 2.0
"""Seconds of the grace period for the exit of the process, which no request may take."""


class Grace:
    """The rest of a pod's grace period, in seconds. Without limit until the first SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self._ends = math.inf

    def watch(self, on_begin: Callable[[int], None] = lambda _: None) -> None:
        """Begin with the first SIGTERM or SIGINT. The handlers that are installed now get the signals, too.

        `on_begin` gets the number of the first signal, in the main thread.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            self._watch(number, signal.getsignal(number), on_begin)

    def _watch(self, number: int, then: object, on_begin: Callable[[int], None]) -> None:
        def handle(number: int, frame: object) -> None:
            first = not self.begun
            self.begin()
            if callable(then):
                then(number, frame)
            if first:
                on_begin(number)

        signal.signal(number, handle)

    def begin(self) -> None:
        """Begin now, unless it has begun."""
        self._ends = min(self._ends, time.monotonic() + contract.TERMINATION_GRACE_SECONDS)

    @property
    def begun(self) -> bool:
        """Whether the pod was told to stop."""
        return self._ends < math.inf

    def left(self) -> float:
        """Return the seconds in which requests to the store and to trackers must end."""
        return self._ends - EXIT_SECONDS - time.monotonic()

    def left_to_upload(self) -> float:
        """Return the seconds in which the last upload must end."""
        return self._ends - REPORT_SECONDS - time.monotonic()
