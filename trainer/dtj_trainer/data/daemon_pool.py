"""Threads that do not hold up the end of the process."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


class DaemonPool:
    """Calls functions in `threads` threads, which start when they are needed.

    Python waits at its end for what a ThreadPoolExecutor has begun or queued. Here that may be reads of a store that
    does not answer, while a process that got SIGTERM has to end within its grace period.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._unfinished = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Call a function in one of the threads; return its future."""
        future: Future[T] = Future()
        with self._lock:
            self._unfinished += 1
            if self._threads < min(self._unfinished, self._most):
                self._threads += 1
                name = f"{self._name}-{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._queue.put((future, call))
        return future

    def close(self) -> None:
        """Drop what is queued, and end the threads without waiting for what they do."""
        with suppress(Empty):
            while queued := self._queue.get_nowait():
                queued[0].cancel()
        for _ in range(self._threads):
            self._queue.put(None)

    def _work(self) -> None:
        while queued := self._queue.get():
            future, call = queued
            if future.set_running_or_notify_cancel():
                with _error_for(future):
                    future.set_result(call())
            with self._lock:
                self._unfinished -= 1
            # Drop the references: the result must not stay in memory until the next call.
            del queued, future, call


@contextmanager
def _error_for(future: Future[T]) -> Iterator[None]:
    """Make an error of the block the error of the future, so that those who wait for the future get it."""
    try:
        yield
    except Exception as error:
        if future.done():
            raise
        future.set_exception(error)
