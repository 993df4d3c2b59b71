"""The limits of a connection of `dtj serve` that uvicorn does not have: time, headers, and requests in advance.

uvicorn limits the time between requests. It waits forever for the first request, for the rest of a request's headers,
and for the rest of a body after the request was refused. With httptools, it takes headers of any size, and any number
of requests before the answer to the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

MAX_HEAD_BYTES = 65536
"""The most bytes of a request's headers and trailers, including a header that has arrived in part."""
MAX_IN_ADVANCE = 32
"""The most requests of a connection that wait for the answer to an earlier one."""


class PromptProtocol(HttpToolsProtocol):
    """Limits one connection. After one to two times `seconds` without progress of a request, the connection ends."""

    seconds = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        self._late: list[RequestResponseCycle | None] = []
        self._arriving = False
        self._head_bytes = self._unread = 0
        self._look_again()

    def _look_again(self) -> None:
        self._timer = self.loop.call_later(self.seconds, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers have more than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """See httptools. An error is answered by 400, and closes the connection."""
        if len(self.pipeline) >= MAX_IN_ADVANCE:
            raise ValueError(f"more than {MAX_IN_ADVANCE} requests of a connection wait for an answer")
        self._arriving, self._head_bytes = True, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """See httptools."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools, which calls it for trailers too."""
        self._count(len(name) + len(value) + 4)  # 4 bytes: colon, space, and the end of the line
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError(f"the headers have more than {MAX_HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self._arriving, self._unread = False, 0
        super().on_message_complete()

    def _look(self) -> None:
        """Close the connection if it still waits for the same request as at the last call."""
        answering = self.cycle is not None and not self.cycle.response_complete
        begun = self.cycle is None or self._arriving
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
