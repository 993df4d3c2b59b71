"""The clocks of the operator: one for waits within the process, one for times that people and other programs read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

# Python has CLOCK_BOOTTIME on Linux. On macOS, CLOCK_MONOTONIC counts the time in which the machine sleeps.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Seconds since the machine started. Nobody can set this clock.

    This clock goes on while a virtual machine is suspended; `time.monotonic` stops.
    """
    return time.clock_gettime(_CLOCK)


class BootLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers count the time in which the machine was suspended."""

    def time(self) -> float:
        """Seconds, by the clock of all waits."""
        return boot_clock()


@dataclass(frozen=True)
class Clock:
    """What time it is, and how much time has passed."""

    now: Callable[[], datetime]
    """The time of the API server, for statuses and events. It may be set back."""
    elapsed: Callable[[], float] = boot_clock
    """Seconds that never step back, for waits within the process."""
