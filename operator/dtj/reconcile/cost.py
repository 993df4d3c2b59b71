"""What a pass costs this process, and where its costly parts are done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

# A job with more pods than this is planned and evaluated in a thread, so that the event loop goes on.
_LARGE = 200
T = TypeVar("T")


class Cost:
    """The processor time of a job's last pass."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def begin(self, seconds: float) -> None:
        """Begin to count the processor time of a pass, which has taken `seconds` already."""
        self.seconds = seconds

    async def count(self, do: Callable[[], T], pods: int) -> T:
        """Do a part of a pass over a job with so many pods, in a thread if they are many: what `do` reads must never
        change.
        """

        def timed() -> tuple[T, float]:
            begun = time.thread_time()
            return do(), time.thread_time() - begun

        result, cost = await asyncio.to_thread(timed) if pods > _LARGE else timed()
        self.seconds += cost
        return result
