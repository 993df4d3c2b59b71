"""Processes that don't outlive who started them. Linux only."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None]:
    """What a child does (first): ask the kernel to be killed when the thread that started it dies."""
    # Looked up here: after the fork other threads' locks may be held for ever.
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    return ask
