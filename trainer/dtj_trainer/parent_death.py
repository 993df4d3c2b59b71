"""Processes that end with their parent. Linux only."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None]:
    """Return a function for the child's start: the kernel kills the child when the thread that started it ends."""
    # Load libc's function before the fork: in the child, locks that other threads held at the fork stay held.
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    return ask
