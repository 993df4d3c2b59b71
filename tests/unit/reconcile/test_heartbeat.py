"""The heartbeat of the event loop, and the check of the heartbeat."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dtj.reconcile.health import STILL_SECONDS, Heartbeat, Watchdog
from tests.unit.support import virtual_time


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def a_pass_that_computes(watchdog: Watchdog, clock: Clock, seconds: float) -> None:
    """The watchdog looks from its thread while the loop does not move."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += 0.25
        watchdog.look()


def test_the_lag_is_what_a_pass_holds_the_loop_up() -> None:
    lags: list[float] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        heartbeat = Heartbeat(loop.time, lags.append)
        beating = asyncio.create_task(heartbeat.beat())
        await asyncio.sleep(1)
        assert len(lags) == pytest.approx(10, abs=1)
        assert max(lags) == pytest.approx(0, abs=1e-6)
        assert heartbeat.still() <= 0.1 + 1e-6
        loop._jump.now += 4  # type: ignore[attr-defined]
        assert heartbeat.still() >= 4
        await asyncio.sleep(0.1)
        assert max(lags) == pytest.approx(4, abs=0.11)
        assert heartbeat.still() <= 0.1 + 1e-6
        beating.cancel()

    virtual_time.run(story())


def test_a_loop_that_stands_still_is_told_once_with_the_place(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    heartbeat = Heartbeat(clock, lambda _: None)
    watchdog = Watchdog(heartbeat, clock)

    a_pass_that_computes(watchdog, clock, STILL_SECONDS)
    assert caplog.messages == []
    a_pass_that_computes(watchdog, clock, 10)

    (line,) = caplog.messages
    assert line.startswith("the event loop has been blocked for 1.2 s at ")
    assert "a_pass_that_computes (test_heartbeat.py:" in line
    assert line.index("a_pass_that_computes") < line.index("test_a_loop_that_stands_still")
    assert "\n" not in line


def test_the_next_standstill_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    heartbeat = Heartbeat(clock, lambda _: None)
    watchdog = Watchdog(heartbeat, clock)

    for _ in range(2):
        a_pass_that_computes(watchdog, clock, 3)
        heartbeat._last = clock()  # it beats
        watchdog.look()

    assert len(caplog.messages) == 2


def test_a_process_that_was_stopped_as_a_whole_blames_no_pass(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    heartbeat = Heartbeat(clock, lambda _: None)
    watchdog = Watchdog(heartbeat, clock)
    watchdog.look()
    clock.now += 300
    watchdog.look()
    heartbeat._last = clock()
    watchdog.look()

    assert caplog.messages == []


async def test_a_thread_looks_while_the_loop_stands(caplog: pytest.LogCaptureFixture) -> None:
    """The threads and the clock of the operator, but a heartbeat that stopped long ago."""
    caplog.set_level(logging.WARNING)
    clock = Clock()
    heartbeat = Heartbeat(clock, lambda _: None)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            loop.call_soon_threadsafe(told.set)

    def ticking() -> float:
        clock.now += 0.5
        return clock.now

    handler = Handler()
    logging.getLogger("dtj.reconcile.health").addHandler(handler)
    try:
        with Watchdog(heartbeat, ticking).watching():
            await asyncio.wait_for(told.wait(), 60)
    finally:
        logging.getLogger("dtj.reconcile.health").removeHandler(handler)
    assert "been blocked" in caplog.text
