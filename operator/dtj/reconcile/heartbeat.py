"""Whether the event loop moves: while one pass computes in the loop, every other pass and every answer waits."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

_log = logging.getLogger(__name__)
STILL_SECONDS = 1.0
"""A loop that has not moved for longer is told, with what the loop's thread does."""
_BEAT_SECONDS = 0.1
_LOOK_SECONDS = 0.25
_MOST_FRAMES = 30


class Heartbeat:
    """Moves with the event loop in which `beat` runs."""

    def __init__(self, clock: Callable[[], float], lag: Callable[[float], None]) -> None:
        """clock: seconds, never set back. lag: told the seconds by which the loop woke each beat too late."""
        self._clock = clock
        self._lag = lag
        self._last = clock()

    def still(self) -> float:
        """Seconds since the loop moved last. Any thread may ask."""
        return self._clock() - self._last

    async def beat(self) -> NoReturn:
        """Beat until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            self._last = self._clock()
            self._lag(max(loop.time() - due, 0.0))


class Watchdog:
    """Looks at a heartbeat from a thread of its own, and logs once where a loop stands that moves no more."""

    def __init__(self, heartbeat: Heartbeat, clock: Callable[[], float]) -> None:
        """Make it in the thread of the event loop. clock: as the heartbeat's."""
        self._heartbeat = heartbeat
        self._clock = clock
        self._watched = threading.get_ident()
        self._told = False
        self._looked = clock()
        self._ending = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look for as long as the block lasts."""
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()

    def _watch(self) -> None:
        while not self._ending.wait(_LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Log where the loop stands, if the loop has not moved for STILL_SECONDS and that is not logged yet."""
        before, self._looked = self._looked, self._clock()
        if self._looked - before > STILL_SECONDS:
            return  # The whole process, or its machine, was stopped: no pass is to blame.
        still = self._heartbeat.still()
        if still <= STILL_SECONDS:
            self._told = False
        elif not self._told:
            self._told = True
            _log.warning("the event loop has stood still for %.1f s at %s", still, _place(self._watched))


def _place(thread: int) -> str:
    """What a thread does, in one line: the innermost call first."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - Python documents this function
    calls = traceback.extract_stack(frame)[: -_MOST_FRAMES - 1 : -1] if frame else []
    return " < ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in calls)
