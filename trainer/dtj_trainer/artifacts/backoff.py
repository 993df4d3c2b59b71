"""Retries with a delay that grows exponentially up to a limit, with jitter."""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING, TypeVar

from dtj_trainer.artifacts.s3 import S3Error

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

SYNC_TIMEOUT_SECONDS = 600.0
"""The default of DTJ_SYNC_TIMEOUT_SECONDS: how long a pod waits for a bucket that transfers no byte."""
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 15.0
_JITTER = random.Random()  # noqa: S311 - not for secrets
"""The program's own draws from the global generator stay the same after a retry."""


class Deadline:
    """A deadline `timeout` seconds after the start; each rise of `progress`, if given, starts the time again.

    `until` returns the seconds until a deadline that nothing moves.
    """

    def __init__(
        self,
        timeout: float,
        progress: Callable[[], int] | None,
        until: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._timeout = timeout
        self._until = until
        self._progress = progress
        self._most = progress() if progress else 0
        self._deadline = time.monotonic() + timeout

    def left(self) -> float:
        """Return the seconds until the deadline."""
        if self._progress and (now := self._progress()) > self._most:
            self._most = now
            self._deadline = time.monotonic() + self._timeout
        return min(self._deadline - time.monotonic(), self._until())


class Backoff:
    """The delay before the next attempt, in seconds. The delay doubles with each failure, up to a limit."""

    def __init__(self, longest: float = LONGEST_DELAY_SECONDS) -> None:
        self._longest = longest
        self._failures = 0

    def next_delay(self) -> float:
        """Count one more failure, and return a random time between half of the current delay and all of it."""
        delay = min(self._longest, FIRST_DELAY_SECONDS * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return delay * _JITTER.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again from the shortest delay."""
        self._failures = 0


def retry_transient(
    call: Callable[[], Result],
    *,
    timeout: float,
    progress: Callable[[], int] | None = None,
    on_wait: Callable[[S3Error, float], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Call until it succeeds, for at most `timeout` seconds without progress.

    An error that is not transient is raised at once. `progress` returns a number that grows with the work of the
    calls, such as the bytes received. `on_wait` gets each error and the seconds until the next attempt. `sleep` may
    raise to end the wait.
    """
    deadline = Deadline(timeout, progress)
    backoff = Backoff()
    while True:
        try:
            return call()
        except S3Error as error:
            left = deadline.left()
            if not error.transient or left <= 0:
                raise
            delay = min(backoff.next_delay(), left)
            on_wait(error, delay)
            sleep(delay)
