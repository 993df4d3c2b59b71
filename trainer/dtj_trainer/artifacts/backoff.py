"""Waiting between attempts: exponential, with jitter, bounded."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from dtj_trainer.artifacts.s3 import S3Error

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 15.0


class Backoff:
    """The delay before the next attempt, in seconds; doubles with each failure up to a limit."""

    def __init__(self, longest: float = LONGEST_DELAY_SECONDS) -> None:
        self._longest = longest
        self._failures = 0

    def next_delay(self) -> float:
        """Count one more failure; a random time between half and all of the present delay."""
        delay = min(self._longest, FIRST_DELAY_SECONDS * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - not for secrets

    def reset(self) -> None:
        """Start again from the shortest delay."""
        self._failures = 0


def retry_transient(
    call: Callable[[], Result],
    *,
    timeout: float,
    on_wait: Callable[[S3Error, float], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Call until it succeeds, for at most `timeout` seconds; an error that can't pass is raised at once.

    `on_wait` hears of each error and the seconds until the next attempt. `sleep` may raise to end the wait.
    """
    deadline = time.monotonic() + timeout
    backoff = Backoff()
    while True:
        try:
            return call()
        except S3Error as error:
            left = deadline - time.monotonic()
            if not error.transient or left <= 0:
                raise
            delay = min(backoff.next_delay(), left)
            on_wait(error, delay)
            sleep(delay)
