"""The health of the process: the answer of /healthz, and the check that the event loop is not blocked.

`process` serves /healthz. `controller` and `informers` raise `Stuck` in their checks.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NoReturn

from aiohttp import web

# The exception that the health check reports as a failure of the process.


class Stuck(RuntimeError):
    """The operator makes no progress. The kubelet should restart its process."""


class Health:
    """The endpoint /healthz. The answer is 500 when `check` raises Stuck."""

    def __init__(self) -> None:
        self.check: Callable[[], Mapping[str, object]] = dict
        """Returns figures of the running operator; raises Stuck. A replica that waits has no figures."""

    @asynccontextmanager
    async def served(self, port: int) -> AsyncIterator[None]:
        """Answer on this port until the block ends."""
        app = web.Application()
        app.router.add_get("/healthz", self._answer)
        runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, None, port).start()
            yield
        finally:
            await runner.cleanup()

    async def _answer(self, _: web.Request) -> web.Response:
        try:
            answer = web.json_response(dict(self.check()))
        except Stuck as stuck:
            answer = web.Response(status=500, text=f"{stuck}\n")
        # Close the connection after the answer: at the end of the process, kopf waits for open connections.
        answer.force_close()
        return answer


# A check that no pass blocks the event loop: while one pass computes, every other pass and every answer waits.

_log = logging.getLogger(__name__)
STILL_SECONDS = 1.0
"""The watchdog logs an event loop that is blocked for longer, with the call stack of the loop's thread."""
_BEAT_SECONDS = 0.1
_LOOK_SECONDS = 0.25
_MOST_FRAMES = 30


class Heartbeat:
    """Records when the event loop in which `beat` runs last ran a task: a blocked loop has an old heartbeat."""

    def __init__(self, clock: Callable[[], float], lag: Callable[[float], None]) -> None:
        """clock: returns seconds of a monotonic clock. lag: called with the seconds by which each beat was late."""
        self._clock = clock
        self._lag = lag
        self._last = clock()

    def still(self) -> float:
        """Return the seconds since the last beat of the loop. Any thread may call this method."""
        return self._clock() - self._last

    async def beat(self) -> NoReturn:
        """Record a beat ten times a second, until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            self._last = self._clock()
            self._lag(max(loop.time() - due, 0.0))


class Watchdog:
    """Checks a heartbeat from a thread of its own, and logs once the call stack of an event loop that is blocked."""

    def __init__(self, heartbeat: Heartbeat, clock: Callable[[], float]) -> None:
        """Create the watchdog in the thread of the event loop. clock: the clock of the heartbeat."""
        self._heartbeat = heartbeat
        self._clock = clock
        self._watched = threading.get_ident()
        self._logged = False
        self._looked = clock()
        self._ending = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Check the heartbeat until the block ends."""
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
        """Log the call stack of the loop's thread once, when the loop has been blocked for STILL_SECONDS."""
        before, self._looked = self._looked, self._clock()
        if self._looked - before > STILL_SECONDS:
            return  # The whole process, or its machine, was stopped. No pass has blocked the loop.
        still = self._heartbeat.still()
        if still <= STILL_SECONDS:
            self._logged = False
        elif not self._logged:
            self._logged = True
            _log.warning("the event loop has been blocked for %.1f s at %s", still, _place(self._watched))


def _place(thread: int) -> str:
    """Describe the call stack of a thread in one line, the innermost call first."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - Python documents this function
    calls = traceback.extract_stack(frame)[: -_MOST_FRAMES - 1 : -1] if frame else []
    return " < ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in calls)
