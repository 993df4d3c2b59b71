"""Clocks of the operator: one for waits within the process, and one for times that people and other programs read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

# A clock that also counts the time in which the machine sleeps: CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Return the seconds since the machine started. Nobody can set this clock.

    This clock runs while a virtual machine is suspended. `time.monotonic` stops in that time.
    """
    return time.clock_gettime(_CLOCK)


class BootLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers count the time in which the machine was suspended."""

    def time(self) -> float:
        """Return the seconds of `boot_clock`, which all waits use."""
        return boot_clock()


@dataclass(frozen=True)
class BootClock:
    """The current time, and a clock for elapsed time."""

    now: Callable[[], datetime]
    """Returns the time of the API server, for statuses and events. An administrator may set this time back."""
    elapsed: Callable[[], float] = boot_clock
    """Seconds of a monotonic clock, for waits within the process."""
