"""The processor time of a pass, and the thread in which its costly parts run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

# A thread plans and evaluates a job with more pods than this, so that the event loop is not blocked.
_LARGE = 200
T = TypeVar("T")


class Cost:
    """The processor time of a job's last pass."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def begin(self, seconds: float) -> None:
        """Begin to count the processor time of a pass. seconds: the processor time that the pass has taken."""
        self.seconds = seconds

    async def count(self, do: Callable[[], T], pods: int) -> T:
        """Run a part of a pass and count its processor time.

        do: runs in a thread for a large job, so nothing may change the data that `do` reads.
        pods: the number of pods of the job.
        """

        def timed() -> tuple[T, float]:
            begun = time.thread_time()
            return do(), time.thread_time() - begun

        result, cost = await asyncio.to_thread(timed) if pods > _LARGE else timed()
        self.seconds += cost
        return result
