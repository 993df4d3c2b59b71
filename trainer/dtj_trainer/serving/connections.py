"""Connections that are closed when a client does not send the request that it began.

uvicorn limits the time between requests. It waits forever for the first request, for the rest of a request's headers,
and for the rest of a body after the request was refused.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle


class PromptProtocol(H11Protocol):
    """See the module. A client that sends nothing useful is given up after one to two times `seconds`."""

    seconds = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        self._late: list[RequestResponseCycle | None] = []
        self._look_again()

    def _look_again(self) -> None:
        self._timer = self.loop.call_later(self.seconds, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Close the connection if it waits for the same as the last time."""
        answering = self.cycle is not None and not self.cycle.response_complete
        begun = self.cycle is None or self.conn.trailing_data[0] or self.conn.their_state is h11.SEND_BODY
        if answering or not begun:
            self._late = []
        elif self._late and self._late[0] is self.cycle:
            self.transport.close()
            return
        else:
            self._late = [self.cycle]
        self._look_again()


def prompt(limit: float) -> type[PromptProtocol]:
    """Return the protocol with a limit in seconds."""

    class Limited(PromptProtocol):
        seconds = limit

    return Limited
