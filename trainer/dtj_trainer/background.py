"""Threads that belong together, and end together."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSING_SECONDS = 5.0
"""Seconds to wait for the threads. A thread may be in a call that does not return, for example to a file server."""


class Background:
    """Daemon threads that go on until `close`."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], None], name: str) -> None:
        """Run `work` in a thread. It returns soon after `wait` has returned True."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for some seconds, or until `close`; return whether the threads are to end."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """End the threads, and wait for them."""
        self._closed.set()
        deadline = time.monotonic() + CLOSING_SECONDS
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
