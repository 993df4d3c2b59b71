"""A queue of events for a main thread that also handles signals."""

import threading
from collections import deque
from contextlib import suppress
from queue import Empty
from time import monotonic
from typing import Generic, TypeVar

Event = TypeVar("Event")


class EventQueue(Generic[Event]):
    """Events of several threads and of signal handlers, for one thread that takes them.

    `queue.SimpleQueue` can't be used: before Python 3.13, `get` waits without end if its timeout passes while the
    thread handles a signal, such as the SIGCHLD of a child that ended. `queue.Queue.put` is not reentrant: a signal
    handler that calls `put` can wait for the thread that the handler interrupts.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._nothing_new = threading.Lock()
        """Held while the queue is empty. The queue may be empty while nobody holds the lock, but not the reverse."""
        self._nothing_new.acquire()

    def put(self, event: Event) -> None:
        """Add an event; any thread and a signal handler may call this at any time."""
        self._events.append(event)
        with suppress(RuntimeError):  # Nobody holds the lock: an earlier `put` has released it.
            self._nothing_new.release()

    def get(self, timeout: float) -> Event:
        """Take the oldest event. Raises `queue.Empty` if there is none after `timeout` seconds."""
        deadline = monotonic() + timeout
        while True:
            with suppress(IndexError):
                return self._events.popleft()
            if not self._nothing_new.acquire(timeout=max(deadline - monotonic(), 0)):
                raise Empty
