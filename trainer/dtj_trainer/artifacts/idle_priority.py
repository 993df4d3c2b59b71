"""Runs threads only while a processor is idle, so that they take no processor time from the program beside them."""

from __future__ import annotations

import logging
import os
import threading

log = logging.getLogger(__name__)


def run_when_idle() -> None:
    """Put the calling thread, and threads that it starts, under SCHED_IDLE.

    A thread can leave SCHED_IDLE only with permissions that a pod does not have. Urgent work needs a new thread that
    a thread of normal priority starts. Where the platform or the container refuses SCHED_IDLE, nothing changes.
    """
    try:
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError) as error:
        log.debug("uploads run at the priority of the program: %s", error)
