"""The main thread takes events while signals come."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty

import pytest

from dtj_trainer.launch.event_queue import EventQueue


@contextmanager
def signalled(handler: Callable[[], object], after: float) -> Iterator[None]:
    """Send this process SIGUSR1 after some seconds."""
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_the_wait_ends_if_its_timeout_passes_while_the_thread_handles_a_signal():
    """`queue.SimpleQueue` of Python 3.11 waits for the next event instead."""
    events: EventQueue[str] = EventQueue()
    handled = threading.Event()
    rescue = threading.Timer(60, events.put, ["too late"])
    rescue.start()

    def handler() -> None:
        time.sleep(0.4)
        handled.set()

    with signalled(handler, after=0.1), pytest.raises(Empty):
        events.get(timeout=0.3)
    rescue.cancel()
    assert handled.is_set()


def test_an_event_of_a_signal_handler_ends_the_wait():
    events: EventQueue[str] = EventQueue()
    with signalled(lambda: events.put("signal"), after=0.1):
        assert events.get(timeout=60) == "signal"


def test_events_of_many_threads_and_of_signal_handlers_come_once_and_in_order():
    events: EventQueue[tuple[int, int]] = EventQueue()
    handled = iter(range(10**6))
    taken: dict[int, list[int]] = {source: [] for source in range(4)}

    def put_all(source: int) -> None:
        for number in range(5000):
            events.put((source, number))
            if source == 1 and number % 50 == 0:
                os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: events.put((0, next(handled))))
    threads = [threading.Thread(target=put_all, args=[source]) for source in (1, 2, 3)]
    try:
        for thread in threads:
            thread.start()
        while not taken[0] or any(len(taken[source]) < 5000 for source in (1, 2, 3)):
            source, number = events.get(timeout=60)
            taken[source].append(number)
    finally:
        for thread in threads:
            thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert all(numbers == list(range(len(numbers))) for numbers in taken.values())


@pytest.mark.parametrize("timeout", [-1, 0])
def test_no_time_means_no_wait(timeout):
    events: EventQueue[str] = EventQueue()
    with pytest.raises(Empty):
        events.get(timeout=timeout)
    events.put("first")
    events.put("second")
    assert [events.get(timeout=timeout), events.get(timeout=timeout)] == ["first", "second"]
    with pytest.raises(Empty):
        events.get(timeout=timeout)
