"""The election of the leader by a Lease, after client-go's leaderelection, and the thread that renews the Lease.

`process` waits for the election before it starts the leader. The rules are pure; the Lease is read and written at the
end of the module.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, Protocol, TypeVar

from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError

# The Lease by which replicas of the operator agree on the one that works, after client-go's leaderelection. Pure.
#
# The operator does not use `kubernetes.aio.leaderelection`: that module judges expiry by the wall clock, lets one
# request that hangs outlast the lease, and does not release the lease.

API_VERSION, KIND = "coordination.k8s.io/v1", "Lease"


@dataclass(frozen=True)
class Timing:
    """Times of an election in seconds. The names are those of kube-scheduler's flags.

    Another candidate replaces a lost leader after retry_period and lease_duration: the candidate may see the last
    renewal retry_period late. The replacement takes 12 s and the time to fill the caches. With client-go's 15, 10 and
    2 s, little time of 20 s would remain for the caches.
    """

    lease_duration: float = 10.0
    """Another candidate may take a lease that nobody has renewed for this time."""
    renew_deadline: float = 7.0
    """A leader that could not renew the lease for this time stops."""
    retry_period: float = 2.0
    """The time between two reads or renewals of the lease."""

    def __post_init__(self) -> None:
        if not self.lease_duration > self.renew_deadline > self.retry_period > 0:
            raise ValueError(
                "the lease duration must be longer than the renew deadline, and the renew deadline longer than the "
                f"retry period; got {self.lease_duration:g}, {self.renew_deadline:g} and {self.retry_period:g} s"
            )

    @property
    def request_timeout(self) -> float:
        """The timeout of one request in seconds. After a request that hangs, time remains for another request."""
        return self.renew_deadline / 2


class ObservedLease:
    """The lease as one candidate has seen the lease, in seconds of the candidate's own clock.

    A candidate never compares clocks of two machines: a lease expires when it has not *changed* for its duration.
    """

    def __init__(self) -> None:
        self._spec: Manifest = {}
        self._since = 0.0

    @property
    def holder(self) -> str:
        """The identity of the lease's holder; empty when nobody holds the lease."""
        return self._spec.get("holderIdentity") or ""

    def see(self, lease: Manifest | None, now: float) -> None:
        """Note the lease that the API server returned. lease: None when the lease does not exist. now: seconds."""
        spec = (lease or {}).get("spec") or {}
        if spec != self._spec:
            self._spec, self._since = spec, now

    def free_at(self, timing: Timing) -> float:
        """Return when a candidate that is not the holder may take the lease, in seconds of the candidate's clock."""
        if not self.holder:
            return self._since
        return self._since + (self._spec.get("leaseDurationSeconds") or timing.lease_duration)


def claimed(
    lease: Manifest | None, place: Manifest, identity: str, now: datetime, timing: Timing
) -> Manifest:
    """Return the lease as this candidate takes or renews the lease.

    lease: the stored lease; None when the lease does not exist. The result has the resourceVersion of a stored lease,
    so of two candidates that claim the lease at once, the API server refuses one.
    place: metadata for a lease that does not exist.
    """
    if lease is None:
        return _lease(place, identity, timing.lease_duration, _written(now), _written(now), 0)
    spec = lease.get("spec") or {}
    held = spec.get("holderIdentity") == identity
    acquired = spec["acquireTime"] if held and spec.get("acquireTime") else _written(now)
    transitions = (spec.get("leaseTransitions") or 0) + (not held)
    return _lease(lease["metadata"], identity, timing.lease_duration, acquired, _written(now), transitions)


def released(lease: Manifest, now: datetime) -> Manifest:
    """Return the lease without a holder. Another candidate takes the lease when it next reads the lease."""
    time = _written(now)
    return _lease(lease["metadata"], "", 1, time, time, lease["spec"].get("leaseTransitions") or 0)


def _lease(
    metadata: Manifest, holder: str, seconds: float, acquired: str, renewed: str, transitions: int
) -> Manifest:
    spec: dict[str, Any] = {
        "holderIdentity": holder,
        "leaseDurationSeconds": math.ceil(seconds),
        "acquireTime": acquired,
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def _written(time: datetime) -> str:
    """Format a time as a MicroTime of Kubernetes. Only people read it: candidates decide by monotonic clocks."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


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
        self._observed = ObservedLease()
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
                    _log.info("acquired the lease: this process, %s, leads", self._identity)
                    return
            except (ApiError, TimeoutError) as error:
                _log.warning("the lease can't be read or taken: %s", _said(error))
            if self._observed.holder != shown:
                shown = self._observed.holder
                _log.info("waiting for the lease: its holder is %s", shown or "nobody")
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
                        _log.warning("the lease is not renewed: the operator's event loop is blocked")
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
            _log.warning("the lease could not be released, and will expire: %s", _said(error))

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
        # Count the renew deadline from before the request, so that the deadline ends before the lease expires for
        # other candidates, who count from the time at which they see the stored lease.
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


# An election in a thread of its own: a pass that blocks the operator's event loop does not delay a renewal.


class LeaseConnection(Leases, Protocol):
    """The requests of an election, and the close of their connections."""

    async def close(self) -> None:
        """Close the connections."""


class LeaseThread:
    """An Elector with an event loop, a thread and a connection of its own. The caller must call `close` at the end.

    Call the methods in the operator's event loop. Any thread may call `leading`.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[LeaseConnection]], elector: Callable[[Leases], Elector]
    ) -> None:
        """connect: opens the connection; called in the thread. elector: creates the candidate."""
        self._connect = connect
        self._make = elector
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lease", daemon=True)
        self._working: asyncio.Task[Any] | None = None
        self._connection: LeaseConnection | None = None
        self._elector: Elector | None = None

    async def start(self) -> None:
        """Start the thread and connect. Raises the exceptions of `connect`."""
        self._thread.start()
        await self._in_thread(self._open())

    def leading(self) -> bool:
        """Return whether this process may write now."""
        return self._elector is not None and self._elector.leading()

    async def acquire(self) -> None:
        """Wait until this process leads. The caller must run `keep` from then on."""
        await self._in_thread(self._work(self._candidate().acquire()))

    async def keep(self) -> None:
        """Renew the lease until this process loses the lease. Raises LeaseLost then."""
        await self._in_thread(self._work(self._candidate().keep()))

    async def release(self) -> None:
        """Release the lease, so that another candidate can take the lease at once. Stop all writes before."""
        await self._in_thread(self._release())

    async def close(self) -> None:
        """Close the connection and end the thread."""
        if self._connection is not None:
            await self._in_thread(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def _open(self) -> None:
        self._connection = await self._connect()
        self._elector = self._make(self._connection)

    def _candidate(self) -> Elector:
        assert self._elector is not None, "started"
        return self._elector

    async def _work(self, work: Coroutine[Any, Any, T]) -> T:
        self._working = asyncio.current_task()
        return await work

    async def _release(self) -> None:
        if self._working is not None:
            # The caller of this task was cancelled, but the task itself runs on in the thread. End it before the
            # release.
            self._working.cancel()
            await asyncio.wait({self._working})
        await self._candidate().release()

    async def _in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and return its result."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
