"""The priority of uploads: low beside a program, and normal after the end of the program."""

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.patience import PATIENCE

from dtj_trainer import background
from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.multipart import HandedOver
from dtj_trainer.artifacts.sync_loop import SyncLoop

WAIT = 30.0 * PATIENCE
Priority = tuple[int, int]
NORMAL = (os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0))
BACKGROUND = (os.SCHED_BATCH, max(NORMAL[1], background.NICE))


class Observed:
    """A pass that tells each time the policy and nice value of its thread and of one of a pool of that thread."""

    def __init__(self) -> None:
        self.priorities: queue.Queue[tuple[Priority, Priority]] = queue.Queue()
        self.at_once = threading.Lock()
        self.over = threading.Event()

    def __call__(self, *, ended: bool, died_ns: int | None) -> bool:
        if self.over.is_set():
            raise Superseded("the test is over")
        assert self.at_once.acquire(blocking=False), "one pass at a time"
        with ThreadPoolExecutor(1) as pool:
            self.priorities.put((_priority(), pool.submit(_priority).result()))
        self.at_once.release()
        return True


def _priority() -> Priority:
    thread = threading.get_native_id()
    return os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)


ENDS: dict[str, Callable[[SyncLoop], object]] = {
    "ended": lambda loop: loop.ask(ended=True),
    "died": lambda loop: loop.program_died(time.time_ns()),
}


@pytest.mark.parametrize("end", ENDS)
def test_passes_have_a_low_priority_until_the_program_ends(end):
    seen = Observed()
    loop = SyncLoop("observing", seen, interval=0.01, beside_program=True)
    loop.start()
    for _ in range(3):
        assert seen.priorities.get(timeout=WAIT) == (BACKGROUND, BACKGROUND)
    ENDS[end](loop)
    asked = loop.ask(ended=end == "ended")
    loop.wait(asked, lambda: WAIT)
    after = [seen.priorities.get(timeout=WAIT) for _ in range(seen.priorities.qsize() + 3)]
    seen.over.set()
    assert after[-3:] == [(NORMAL, NORMAL)] * 3


def test_without_permission_uploads_go_on(monkeypatch):
    def refused(*_: object) -> None:
        raise PermissionError(1, "not here")

    monkeypatch.setattr(background.os, "setpriority", refused)
    seen = Observed()
    loop = SyncLoop("observing", seen, interval=0.01, beside_program=True)
    loop.start()
    assert seen.priorities.get(timeout=WAIT) == (NORMAL, NORMAL)
    loop.wait(loop.ask(ended=True), lambda: WAIT)
    seen.over.set()


def test_a_pass_that_hands_its_upload_over_has_not_failed():
    passes = iter([HandedOver("s3://bucket/key")])

    def pass_once(*, ended: bool, died_ns: int | None) -> bool:
        for error in passes:
            raise error
        return ended

    loop = SyncLoop("observing", pass_once, interval=0.01)
    asked = loop.ask(ended=True)
    loop.start()
    loop.wait(asked, lambda: WAIT)
    assert loop.failures == 0
