"""Gives threads a low priority, so that they take little processor time from the program beside them."""

from __future__ import annotations

import logging
import os
import sys
import threading

log = logging.getLogger(__name__)

NICE = 10
"""A tenth of a processor that one thread of the program keeps busy.

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
