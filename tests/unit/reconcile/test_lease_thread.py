"""The election in its thread: renewals while the event loop of the operator is blocked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from dtj.api.job import Manifest
from dtj.reconcile.boot_clock import boot_clock
from dtj.reconcile.election import Elector, LeaseLost, Leases, LeaseThread, Timing
from tests.unit.support.lease_api import LeaseApi

PATIENCE = 60.0
# No leader loses its lease because the machine is busy.
OFTEN = Timing(lease_duration=600, renew_deadline=500, retry_period=0.01)


class Connected(LeaseApi):
    """Counts renewals for whoever waits in another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = ""
        self.closed = False
        self.renewed = threading.Semaphore(0)

    async def replace(self, manifest: Manifest) -> Manifest | None:
        self.thread = threading.current_thread().name
        stored = await super().replace(manifest)
        self.renewed.release()
        return stored

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def candidate(
    api: Connected, identity: str = "a", timing: Timing = OFTEN, alive: Callable[[], bool] = lambda: True
) -> AsyncIterator[LeaseThread]:
    async def connect() -> Connected:
        return api

    def elector(leases: Leases) -> Elector:
        place = {"namespace": "dtj-system", "name": "dtj-operator"}
        return Elector(leases, place, identity, timing, boot_clock, lambda: datetime.now(UTC), alive)

    thread = LeaseThread(connect, elector)  # type: ignore[arg-type]
    await thread.start()
    try:
        yield thread
    finally:
        await thread.close()


async def test_the_lease_is_renewed_while_a_pass_holds_the_event_loop() -> None:
    api = Connected()
    async with candidate(api) as lease:
        await lease.acquire()
        kept = asyncio.create_task(lease.keep())
        await asyncio.sleep(0)
        # No await: the loop of this test stands still until the thread has renewed the lease again and again.
        assert all(api.renewed.acquire(timeout=PATIENCE) for _ in range(5))
        assert lease.leading()
        assert api.thread == "lease"
        kept.cancel()
        await lease.release()

        assert not lease.leading()
        assert api.holder == ""
    assert api.closed


async def test_no_renewal_is_under_way_when_the_lease_is_given_back() -> None:
    api = Connected()
    async with candidate(api) as lease:
        await lease.acquire()
        kept = asyncio.create_task(lease.keep())
        while not api.renewed.acquire(blocking=False):
            await asyncio.sleep(0)
        kept.cancel()
        await lease.release()

        assert lease._working is not None
        assert lease._working.done()
        assert api.holder == ""


async def test_a_lost_lease_is_told_to_the_event_loop() -> None:
    api = Connected()
    async with candidate(api, timing=Timing(0.3, 0.2, 0.01), alive=lambda: not api.renewed._value) as lease:
        await lease.acquire()
        with pytest.raises(LeaseLost, match=r"the lease was not renewed for 0\.2 s"):
            await asyncio.wait_for(lease.keep(), PATIENCE)

        assert not lease.leading()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux has that clock")
def test_the_time_counts_for_which_a_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_MONOTONIC: 100.0, time.CLOCK_BOOTTIME: 400.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)

    assert boot_clock() == 400


async def test_what_connecting_raises_reaches_the_operator() -> None:
    async def connect() -> Connected:
        raise OSError("no kubeconfig")

    thread = LeaseThread(connect, lambda _: pytest.fail("not connected"))  # type: ignore[arg-type, return-value]
    with pytest.raises(OSError, match="no kubeconfig"):
        await thread.start()
    assert not thread.leading()
    await thread.close()
