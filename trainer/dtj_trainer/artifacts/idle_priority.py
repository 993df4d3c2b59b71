"""Runs threads only while a processor is free, so that they take no slice from the program beside them."""

from __future__ import annotations

import logging
import os
import threading

log = logging.getLogger(__name__)


def run_when_idle() -> None:
    """Put the calling thread under SCHED_IDLE; threads that it starts are, too.

    A thread gets out of SCHED_IDLE only with permissions that a pod does not have: work that must not wait any more
    needs a thread which another one starts. Where the platform or the container refuses, nothing changes.
    """
    try:
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError) as error:
        log.debug("uploads run at the priority of the program: %s", error)
