"""The connections to the webhook: bounded in number, bytes and time. Addresses share them, and take turns.

Any client that reaches the port may connect, without a credential. A connection costs memory from its first packet
on, so connections are counted before their TLS handshake. Where there are too many, the address that has most of them
loses one: API servers get their share beside any other client.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from aiohttp import web

_log = logging.getLogger(__name__)
MOST_CONNECTIONS = 512
MOST_BYTES = 32 * 2**20
"""Received bytes of all open connections."""
# Seconds from the first packet to the end of the request, with the TLS handshake.
_ARRIVE_SECONDS = 5.0
# Seconds from the end of the request to the end of the connection. No API server waits for longer.
_ANSWER_SECONDS = 30.0
_CLOSE_SECONDS = 1.0
_BACKLOG = 128


class Connection(asyncio.Protocol):
    """A connection: hands everything on to the HTTP server's protocol, and counts the received bytes."""

    def __init__(self, number: int, address: str, received: Callable[[Connection, int], None]) -> None:
        """number: connections are numbered in the order in which they come."""
        self.number = number
        self.address = address
        self.bytes = 0
        self.body = bytearray()
        """The body of the request. It is emptied at the end: what still refers to it would keep it until the garbage
        collector comes."""
        self.cut = False
        """Whether the server has closed the connection."""
        self.lost = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.deadline: asyncio.Timeout | None = None
        self._received = received
        self._inner: asyncio.Protocol | None = None

    def begin(self, inner: asyncio.Protocol) -> Connection:
        """Set the HTTP server's protocol."""
        self._inner = inner
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin after the TLS handshake."""
        assert self._inner is not None
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Count the bytes, and hand them on unless the connection was closed for them."""
        self._received(self, len(data))
        if self._inner is not None and not self.cut:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Hand on that the client sends no more."""
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        """Hand on that the client does not read."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that the client reads again."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.connection_lost(exc)
        self.lost.set()

    def arrived(self) -> None:
        """Note that the whole request is there."""
        if self.deadline is not None:
            self.deadline.reschedule(asyncio.get_running_loop().time() + _ANSWER_SECONDS)


class Connections:
    """The open connections of one server."""

    def __init__(
        self,
        server: web.Server,
        context: ssl.SSLContext,
        longest: int,
        most: int = MOST_CONNECTIONS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """longest: bytes of one connection. most, most_bytes: limits for all connections."""
        self._server = server
        self._context = context
        self._longest = longest
        self._most = most
        self._most_bytes = most_bytes
        self._open: dict[tuple[str, int], Connection] = {}
        """By address and port of the client."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._open)

    def of(self, request: web.Request) -> Connection | None:
        """Return the connection of a request; None if the connection is closed."""
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        return self._open.get(peer[:2]) if peer else None

    @asynccontextmanager
    async def accepted(self, host: str | None, port: int) -> AsyncIterator[int]:
        """Accept connections until the block ends. Yields the port. Arguments: as for `Server.served`."""
        with _listener(host, port) as listener:
            accepting = asyncio.create_task(self._accept(listener))
            try:
                yield listener.getsockname()[1]
            finally:
                accepting.cancel()
                await asyncio.wait({accepting})

    async def close(self) -> None:
        """Close every connection."""
        tasks = [connection.task for connection in self._open.values() if connection.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, peer = await loop.sock_accept(listener)
            except OSError as error:  # The client has gone, or the process has no more files.
                _log.warning("the webhook accepts no connection: %s", error)
                await asyncio.sleep(_CLOSE_SECONDS)
                continue
            self._count += 1
            connection = Connection(self._count, peer[0], self._grow)
            self._open[peer[:2]] = connection
            connection.task = asyncio.create_task(self._serve(client, connection))
            connection.task.add_done_callback(partial(self._drop, peer[:2], connection))
            await asyncio.sleep(
                0
            )  # The task begins: from here on it closes the socket, also when it is cancelled.
            if len(self._open) > self._most:
                self._cut(max(self._crowd(len), key=lambda each: -each.number))

    async def _serve(self, client: socket.socket, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        transport: asyncio.BaseTransport | None = None
        try:
            async with asyncio.timeout(_ARRIVE_SECONDS) as connection.deadline:
                transport, _ = await loop.connect_accepted_socket(
                    lambda: connection.begin(self._server()),
                    client,
                    ssl=self._context,
                    ssl_handshake_timeout=_ARRIVE_SECONDS,
                    ssl_shutdown_timeout=_CLOSE_SECONDS,
                )
                await connection.lost.wait()
        except OSError:  # No TLS, a handshake that failed, or too slow: TimeoutError is one.
            _log.debug("the webhook closed the connection of %s", connection.address)
        finally:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()

    def _grow(self, connection: Connection, size: int) -> None:
        """Count received bytes. Close this connection if it has too many, and others if all have too many."""
        connection.bytes += size
        if connection.bytes > self._longest:
            self._cut(connection)
        elif _bytes(list(self._open.values())) > self._most_bytes:
            self._cut(max(self._crowd(_bytes), key=lambda each: each.bytes))

    def _crowd(self, size: Callable[[list[Connection]], int]) -> list[Connection]:
        """Return the connections of the address that has most, by this measure."""
        by_address: dict[str, list[Connection]] = {}
        for connection in self._open.values():
            by_address.setdefault(connection.address, []).append(connection)
        return max(by_address.values(), key=size)

    def _cut(self, connection: Connection) -> None:
        connection.bytes = 0
        connection.cut = True
        if connection.task is not None:
            connection.task.cancel()

    def _drop(self, peer: tuple[str, int], connection: Connection, _: asyncio.Task[None]) -> None:
        if self._open.get(peer) is connection:
            del self._open[peer]
        connection.body.clear()


def _bytes(connections: list[Connection]) -> int:
    return sum(each.bytes for each in connections)


@contextmanager
def _listener(host: str | None, port: int) -> Iterator[socket.socket]:
    """Listen at this address; None: at all addresses of IPv4 and IPv6."""
    both = host is None and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(
        (host or "", port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
    ) as listener:
        listener.setblocking(False)
        yield listener


class Turns:
    """Lets one review run at a time. Addresses take turns, so that many requests of one delay no other."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a turn of this address, and hold it for the block."""
        if self._taken:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(address, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        self._taken = True
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            address, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[address] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False
