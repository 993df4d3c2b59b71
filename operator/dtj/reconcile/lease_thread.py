"""An election in a thread of its own: no pass that holds up the operator's event loop makes a renewal late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from dtj.reconcile.election import Elector, Leases

T = TypeVar("T")


class Connection(Leases, Protocol):
    """Requests of an election, until they are closed."""

    async def close(self) -> None:
        """Close the connections."""


class LeaseThread:
    """An Elector with an event loop, a thread and a connection of its own. Close it when done.

    Call the methods in the operator's event loop; any thread may ask `leading`.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], elector: Callable[[Leases], Elector]
    ) -> None:
        """connect: called in the thread. elector: makes the candidate."""
        self._connect = connect
        self._make = elector
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lease", daemon=True)
        self._working: asyncio.Task[Any] | None = None
        self._connection: Connection | None = None
        self._elector: Elector | None = None

    async def start(self) -> None:
        """Connect. Raises what connecting raises."""
        self._thread.start()
        await self._there(self._open())

    def leading(self) -> bool:
        """Whether this process may write now."""
        return self._elector is not None and self._elector.leading()

    async def acquire(self) -> None:
        """Wait until this process leads; then `keep` has to run."""
        await self._there(self._work(self._candidate().acquire()))

    async def keep(self) -> None:
        """Renew the lease for as long as that succeeds. Raises LeaseLost."""
        await self._there(self._work(self._candidate().keep()))

    async def release(self) -> None:
        """Lead no more, and let another take over at once. Everything that writes must have stopped before."""
        await self._there(self._release())

    async def close(self) -> None:
        """End the thread."""
        if self._connection is not None:
            await self._there(self._connection.close())
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
            # Whoever waited for it has been cancelled, but its last request may still be under way.
            self._working.cancel()
            await asyncio.wait({self._working})
        await self._candidate().release()

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the thread do it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
