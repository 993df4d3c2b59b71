"""A clock by which a Lease expires."""

from __future__ import annotations

import time

# Python has CLOCK_BOOTTIME on Linux. On macOS, CLOCK_MONOTONIC counts the time in which the machine sleeps.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Seconds since the machine started. Nobody can set this clock.

    This clock goes on while a virtual machine is suspended; `time.monotonic` stops.
    """
    return time.clock_gettime(_CLOCK)
