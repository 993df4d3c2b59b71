"""The HTTPS server of the webhook, and its connections, with limits of their number, bytes and time.

Any client that reaches the port may connect without a credential. A connection takes memory from its first packet on,
so connections are counted before their TLS handshake. If there are too many, the server closes one of the address
with the most, so that API servers keep theirs. `review` makes the answers, and `service` the certificates.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from dtj.admission.review import Malformed, review
from dtj.api.nesting import read_json

_log = logging.getLogger(__name__)
MOST_CONNECTIONS = 512
MOST_BYTES = 32 * 2**20
"""The limit of received bytes of all open connections together."""
# Seconds from the first packet to the end of the request, with the TLS handshake.
_ARRIVE_SECONDS = 5.0
# Seconds from the end of the request to the end of the connection. No API server waits for longer.
_ANSWER_SECONDS = 30.0
_CLOSE_SECONDS = 1.0
_BACKLOG = 128


class WebhookConnection(asyncio.Protocol):
    """A connection: hands everything on to the HTTP server's protocol, and counts the received bytes."""

    def __init__(self, number: int, address: str, received: Callable[[WebhookConnection, int], None]) -> None:
        """number: the number of the connection, in the order in which connections come."""
        self.number = number
        self.address = address
        self.bytes = 0
        self.body = bytearray()
        """The body of the request. The end of the connection clears it, because reference cycles may keep the object
        until the garbage collector runs."""
        self.cut = False
        """Whether the server has closed the connection."""
        self.lost = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.deadline: asyncio.Timeout | None = None
        self._received = received
        self._inner: asyncio.Protocol | None = None

    def begin(self, inner: asyncio.Protocol) -> WebhookConnection:
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
        """Pass the end of the client's data on to the HTTP server."""
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        """Make the HTTP server pause: the client reads more slowly than the server writes."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Let the HTTP server write again: the client has read the buffered data."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.connection_lost(exc)
        self.lost.set()

    def arrived(self) -> None:
        """Note that the whole request has arrived: the client may now wait for the answer."""
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
        self._open: dict[tuple[str, int], WebhookConnection] = {}
        """The open connections, by address and port of the client."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._open)

    def of(self, request: web.Request) -> WebhookConnection | None:
        """Return the connection of a request; None if the connection is closed."""
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        return self._open.get(peer[:2]) if peer else None

    @asynccontextmanager
    async def accepted(self, host: str | None, port: int) -> AsyncIterator[int]:
        """Accept connections until the block ends. Yields the port. Arguments: as for `WebhookServer.served`."""
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
            except OSError as error:  # The client has closed the connection, or too many files are open.
                _log.warning("the webhook could not accept a connection: %s", error)
                await asyncio.sleep(_CLOSE_SECONDS)
                continue
            self._count += 1
            connection = WebhookConnection(self._count, peer[0], self._grow)
            self._open[peer[:2]] = connection
            connection.task = asyncio.create_task(self._serve(client, connection))
            connection.task.add_done_callback(partial(self._drop, peer[:2], connection))
            # Let the task begin. After that, the task closes the socket even if the task is cancelled.
            await asyncio.sleep(0)
            if len(self._open) > self._most:
                self._cut(max(self._crowd(len), key=lambda each: -each.number))

    async def _serve(self, client: socket.socket, connection: WebhookConnection) -> None:
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
        except OSError:  # The handshake failed, or was too slow: TimeoutError is an OSError.
            _log.debug("the webhook closed the connection of %s", connection.address)
        finally:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()

    def _grow(self, connection: WebhookConnection, size: int) -> None:
        """Count received bytes. Close this connection above its own limit, and others above the limit for all."""
        connection.bytes += size
        if connection.bytes > self._longest:
            self._cut(connection)
        elif _bytes(list(self._open.values())) > self._most_bytes:
            self._cut(max(self._crowd(_bytes), key=lambda each: each.bytes))

    def _crowd(self, size: Callable[[list[WebhookConnection]], int]) -> list[WebhookConnection]:
        """Return the connections of the address that has most, by this measure."""
        by_address: dict[str, list[WebhookConnection]] = {}
        for connection in self._open.values():
            by_address.setdefault(connection.address, []).append(connection)
        return max(by_address.values(), key=size)

    def _cut(self, connection: WebhookConnection) -> None:
        connection.bytes = 0
        connection.cut = True
        if connection.task is not None:
            connection.task.cancel()

    def _drop(self, peer: tuple[str, int], connection: WebhookConnection, _: asyncio.Task[None]) -> None:
        if self._open.get(peer) is connection:
            del self._open[peer]
        connection.body.clear()


def _bytes(connections: list[WebhookConnection]) -> int:
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
    """Lets one review run at a time. Addresses take turns, so that requests of one client do not delay the others."""

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


PATH, READY = "/validate", "/ready"
# An API server accepts objects up to 3 MiB. An update sends two objects, the user and the options.
_LARGEST = 2 * 3 * 2**20 + 2**18
# The most bytes of a connection: the body, the head of the request, and bytes after a body that is too large.
_LONGEST_CONNECTION = _LARGEST + 2**20
_BODY_SECONDS = 2.0
_VERDICTS = ("allowed", "refused", "malformed", "error")


class WebhookServer:
    """Answers AdmissionReviews of the API server."""

    def __init__(self, registry: CollectorRegistry, host_paths: Sequence[str] = ()) -> None:
        """host_paths: see `review`."""
        self._host_paths = host_paths
        self._requests = Counter(
            "dtj_admission_requests",
            "Requests of the API server to validate a job, by verdict.",
            ["verdict"],
            registry=registry,
        )
        for verdict in _VERDICTS:
            # Each series exists from the start: rate() misses the first count of a series that begins at 1.
            self._requests.labels(verdict)
        # Reviews run in a thread, because reviews would delay the passes in the event loop.
        self._reviews = ThreadPoolExecutor(max_workers=1, thread_name_prefix="review")
        self._turns = Turns()

    @asynccontextmanager
    async def served(self, port: int, context: ssl.SSLContext, host: str | None = None) -> AsyncIterator[int]:
        """Answer requests until the block ends. Yields the port.

        port: 0 chooses a free port. host: None listens on all addresses.
        """
        app = web.Application()
        app.router.add_post(PATH, self._validate)
        app.router.add_get(READY, _ready)
        runner = web.AppRunner(
            app, handle_signals=False, access_log=None, shutdown_timeout=1.0, handler_cancellation=True
        )
        await runner.setup()
        assert runner.server is not None
        self._connections = Connections(runner.server, context, _LONGEST_CONNECTION)
        try:
            async with self._connections.accepted(host, port) as bound:
                yield bound
        finally:
            await runner.cleanup()
            await self._connections.close()
            self._reviews.shutdown(wait=False, cancel_futures=True)

    async def _validate(self, request: web.Request) -> web.Response:
        verdict: str | None = "error"
        try:
            # Read the body before the request gets its turn: a client that sends slowly must not delay others.
            connection = self._connections.of(request)
            if connection is None:
                raise Malformed("the connection is closed")
            await _read(request, connection.body)
            connection.arrived()
            async with self._turns.turn(connection.address):
                allowed, text = await asyncio.get_running_loop().run_in_executor(
                    self._reviews, _reviewed, connection.body, self._host_paths
                )
            verdict = "allowed" if allowed else "refused"
            answer = web.Response(text=text, content_type="application/json")
        except Malformed as error:
            verdict = "malformed"
            answer = web.Response(status=400, text=f"{error}\n")
        except asyncio.CancelledError:
            verdict = None  # The client has closed the connection, or was too slow. Do not count the request.
            raise
        finally:
            if verdict is not None:
                self._requests.labels(verdict).inc()
        return _last(answer)


def _reviewed(body: bytearray, host_paths: Sequence[str]) -> tuple[bool, str]:
    """Return whether the job is allowed, and the answer as JSON. Raises Malformed."""
    try:
        request = read_json(body)
    except ValueError as error:
        raise Malformed(f"the request is not readable JSON: {error}") from None
    try:
        answer = review(request, host_paths)
    except RecursionError:
        raise Malformed("the request is nested too deeply") from None
    return answer["response"]["allowed"], json.dumps(answer)


async def _read(request: web.Request, body: bytearray) -> None:
    """Read the body of the request. Raises Malformed."""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for block in request.content.iter_any():
                body += block
                if len(body) > _LARGEST:
                    raise Malformed(f"the request has more than {_LARGEST} bytes")
    except TimeoutError:
        raise Malformed(f"the request did not arrive in {_BODY_SECONDS:g} s") from None


async def _ready(_: web.Request) -> web.Response:
    return _last(web.Response())


def _last(answer: web.Response) -> web.Response:
    """Make the server close the connection after this answer."""
    # kopf waits for open connections before it ends. Also, only a new connection gets a new certificate.
    answer.force_close()
    return answer
