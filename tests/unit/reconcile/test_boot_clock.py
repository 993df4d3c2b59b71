"""The clock for timers within the process, which counts a suspension of the machine."""

from __future__ import annotations

import asyncio
import time

import pytest

from dtj.reconcile import boot_clock as boot_clock_module
from dtj.reconcile.boot_clock import BootLoop


def test_a_timer_is_due_after_a_suspension_that_was_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended = 0.0
    monkeypatch.setattr(boot_clock_module, "boot_clock", lambda: time.monotonic() + suspended)

    async def wait() -> None:
        nonlocal suspended
        due = asyncio.Event()
        asyncio.get_running_loop().call_later(3600, due.set)
        suspended = 3600.0
        await asyncio.wait_for(due.wait(), 60)

    with asyncio.Runner(loop_factory=BootLoop) as runner:
        runner.run(wait())
