"""Threads beside the work of a process: daemons that end together, and threads of low priority."""

from __future__ import annotations

import logging
import os
import sys
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


# run_in_background gives threads a low priority, so that they take little processor time from the program beside
# them.

log = logging.getLogger(__name__)

NICE = 10
"""The nice value. A thread with it gets a tenth of a processor that one thread of the program keeps busy.

SCHED_IDLE starves an upload on busy processors, and nice 19 a save: a checkpoint would stay in the pod for minutes.
An idle thread that holds Python's lock also stops the other threads of its process until a processor is free.
"""


def run_in_background() -> None:
    """Give the calling thread, and threads that it starts, the nice value NICE and SCHED_BATCH.

    Under SCHED_BATCH, a thread that wakes waits for the end of a running thread's time slice. A thread can lower its
    nice value only with permissions that a pod does not have. Urgent work needs a new thread that a thread of normal
    priority starts. Where the platform or the container refuses the priority, nothing changes.
    """
    if sys.platform != "linux":
        return  # Elsewhere only a whole process has a priority.
    try:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
        os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        log.debug("background work runs at the priority of the program: %s", error)
