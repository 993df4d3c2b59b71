"""Leader election: at most one replica of the operator works, and that replica stops before another one may begin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NoReturn, Protocol, TypeVar

from dtj.api.job import Manifest
from dtj.cluster.port import ApiError
from dtj.reconcile.lease import API_VERSION, KIND, Observed, Timing, claimed, released

_log = logging.getLogger(__name__)
_SHORTEST_PAUSE = 0.05
T = TypeVar("T")


class Leases(Protocol):
    """The requests of an election. Each raises ApiError."""

    async def get(self, manifest: Manifest) -> Manifest | None:
        """Return the object of the same kind, namespace and name, or None when the object does not exist."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object. Raises ApiError 409 when an object of that name exists."""

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object. Raises ApiError 409 when the object has a newer resourceVersion than the manifest."""


class LeaseLost(Exception):
    """Another process may lead now. This process must end, without the writes that it has not sent yet."""


class Elector:
    """One candidate for a lease."""

    def __init__(
        self,
        leases: Leases,
        place: Manifest,
        identity: str,
        timing: Timing,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """place: namespace and name of the lease.
        clock: returns seconds of a monotonic clock that runs while the machine is suspended.
        now: returns the time that the lease shows to people.
        alive: returns whether this process can do the leader's work. While `alive` returns False, the elector neither
        takes nor renews the lease.
        """
        self._leases = leases
        self._place = place
        self._identity = identity
        self._timing = timing
        self._clock = clock
        self._now = now
        self._alive = alive
        self._observed = Observed()
        self._lease: Manifest | None = None
        """The lease as this process last wrote it; None when the stored lease is not known."""
        self._leads_until = float("-inf")
        self._claimed = False

    def leading(self) -> bool:
        """Return whether this process may write now.

        Without a renewal, this method returns False before another candidate may take the lease.
        """
        return self._clock() < self._leads_until

    async def acquire(self) -> None:
        """Wait until this process leads. The caller must run `keep` from then on."""
        shown = ""
        while True:
            begin = self._clock()
            try:
                if self._alive() and await self._attempt():
                    _log.info("leading, as %s", self._identity)
                    return
            except (ApiError, TimeoutError) as error:
                _log.warning("the lease can't be read or taken: %s", _said(error))
            if self._observed.holder != shown:
                shown = self._observed.holder
                _log.info("waiting: %s leads", shown or "nobody")
            now, wake, free = self._clock(), begin + self._timing.retry_period, self._free_at()
            if now < free < wake:
                wake = free
            await asyncio.sleep(max(wake - now, _SHORTEST_PAUSE))

    async def keep(self) -> NoReturn:
        """Renew the lease until this process loses the lease. Raises LeaseLost then."""
        begin = self._clock()
        while True:
            wake = min(begin + self._timing.retry_period, self._leads_until)
            await asyncio.sleep(max(wake - self._clock(), _SHORTEST_PAUSE))
            begin = self._clock()
            try:
                async with asyncio.timeout(self._leads_until - begin):
                    if not self._alive():
                        _log.warning("the lease is not renewed: the operator's event loop stands still")
                    elif not await self._attempt():
                        self._leads_until = float("-inf")
                        raise LeaseLost(f"{self._observed.holder or 'nobody'} holds the lease now")
            except (ApiError, TimeoutError) as error:
                _log.warning("the lease was not renewed: %s", _said(error))
            if not self.leading():
                raise LeaseLost(f"the lease was not renewed for {self._timing.renew_deadline:g} s")

    async def release(self) -> None:
        """Release the lease, so that another candidate can take the lease at once. Stop all writes before."""
        self._leads_until = float("-inf")
        if not self._claimed:
            return
        self._claimed = False
        try:
            # Read the lease again: the API server may have stored a claim whose answer got lost.
            lease = await self._in_time(self._leases.get(self._wanted()))
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                await self._in_time(self._leases.replace(released(lease, self._now())))
                _log.info("the lease is released")
        except (ApiError, TimeoutError) as error:
            _log.warning("the lease was not released, it expires by itself: %s", _said(error))

    async def _attempt(self) -> bool:
        """Take or renew the lease, and return whether this process holds it. Raises ApiError and TimeoutError.

        This process neither takes nor renews a lease that another candidate holds and that has not expired.
        """
        known, self._lease = self._lease, None
        if known is None or self._observed.holder != self._identity:
            known = await self._in_time(self._leases.get(self._wanted()))
            self._observed.see(known, self._clock())
            if self._observed.holder != self._identity and self._clock() < self._free_at():
                return False
        wanted = claimed(known, self._place, self._identity, self._now(), self._timing)
        self._claimed = True
        # Count the deadline from before the request. Other candidates count from when they see the stored lease.
        sent = self._clock()
        write = self._leases.create if known is None else self._leases.replace
        self._lease = await self._in_time(write(wanted))
        self._observed.see(self._lease, self._clock())
        self._leads_until = sent + self._timing.renew_deadline
        return True

    def _wanted(self) -> Manifest:
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": self._place}

    def _free_at(self) -> float:
        return self._observed.free_at(self._timing)

    async def _in_time(self, request: Awaitable[T]) -> T:
        async with asyncio.timeout(self._timing.request_timeout):
            return await request


def _said(error: Exception) -> str:
    return str(error) or "no answer in time"
