"""An election in a thread of its own: a pass that blocks the operator's event loop does not delay a renewal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from dtj.reconcile.election import Elector, Leases

T = TypeVar("T")


class Connection(Leases, Protocol):
    """The requests of an election, and the close of their connections."""

    async def close(self) -> None:
        """Close the connections."""


class LeaseThread:
    """An Elector with an event loop, a thread and a connection of its own. The caller must call `close` at the end.

    Call the methods in the operator's event loop. Any thread may call `leading`.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], elector: Callable[[Leases], Elector]
    ) -> None:
        """connect: opens the connection; called in the thread. elector: creates the candidate."""
        self._connect = connect
        self._make = elector
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lease", daemon=True)
        self._working: asyncio.Task[Any] | None = None
        self._connection: Connection | None = None
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
            # The caller that waited for this task is cancelled, but the last request of the task may still run.
            self._working.cancel()
            await asyncio.wait({self._working})
        await self._candidate().release()

    async def _in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and return its result."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
