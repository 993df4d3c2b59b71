"""The connections of the webhook: how many, how large, how slow, and whose.

* clients without a credential that hold connections, send slowly, or send much
* API servers beside such clients
* turns of addresses
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from dtj.admission import server as connections_module
from dtj.admission.certificates import issue
from dtj.admission.server import Connections, Turns
from dtj.admission.service import Serving
from tests.unit.support.tls import HOST

PAIR = issue(HOST, datetime.now(UTC))
SERVER, NOISY = "127.0.0.1", "127.0.0.2"
"""The address of an API server, and that of somebody else."""
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"


class Client:
    """A connection to the webhook."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self) -> bytes:
        """All until the server closes the connection."""
        async with asyncio.timeout(60):
            try:
                return await self.reader.read()
            except (ConnectionError, ssl.SSLError):
                return b""

    async def answered(self) -> bool:
        """Whether the server answers the whole request."""
        await self.send(HEAD + b"x" * 1000)
        return b"1000 bytes" in await self.read()


class Webhook:
    """The server under test, whose answers tell the length of the body."""

    def __init__(self, connections: Connections, port: int) -> None:
        self.connections, self.port = connections, port
        self.clients: list[Client] = []

    async def client(self, address: str, *, tls: bool = True) -> Client:
        trusting = ssl.create_default_context(cadata=PAIR.authorities.decode()) if tls else None
        client = Client(
            *await asyncio.open_connection(
                "127.0.0.1",
                self.port,
                ssl=trusting,
                server_hostname=HOST if tls else None,
                local_addr=(address, 0),
            )
        )
        self.clients.append(client)
        return client

    async def until(self, there: int) -> None:
        """Wait until the server has this many connections."""
        async with asyncio.timeout(60):
            while len(self.connections) != there:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(longest: int = 10**6, most: int = 100, most_bytes: int = 10**6) -> AsyncIterator[Webhook]:
    async def handle(request: web.Request) -> web.Response:
        answer = web.Response(text=f"{len(await request.read())} bytes")
        answer.force_close()
        return answer

    app = web.Application(client_max_size=10**7)
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    assert runner.server is not None
    certificate = Serving(CollectorRegistry())
    certificate.use(PAIR)
    connections = Connections(runner.server, certificate.context, longest, most, most_bytes)
    try:
        async with connections.accepted("127.0.0.1", 0) as port:
            webhook = Webhook(connections, port)
            yield webhook
            for client in webhook.clients:
                client.writer.close()
    finally:
        await runner.cleanup()
        await connections.close()
    assert len(connections) == 0


@pytest.mark.bound(
    "webhook",
    "Any pod that reaches the port",
    "Connections",
    "512; the address with most loses one",
)
async def test_who_holds_most_connections_loses_the_oldest() -> None:
    async with serving(most=4) as webhook:
        silent = [await webhook.client(NOISY, tls=False) for _ in range(4)]
        await webhook.until(4)
        asked = await webhook.client(SERVER)
        assert await asked.answered()
        assert await silent[0].read() == b""
        await webhook.until(3)
        assert [client.reader.at_eof() for client in silent[1:]] == [False] * 3


@pytest.mark.bound(
    "webhook",
    "Any pod that reaches the port",
    "Bytes of all requests",
    "32 MiB; the address with most loses a connection",
)
async def test_who_has_sent_most_bytes_loses_them() -> None:
    async with serving(most_bytes=100_000) as webhook:
        slow = [await webhook.client(NOISY) for _ in range(3)]
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n"
        for client, sent in zip(slow, (30_000, 45_000, 20_000), strict=True):
            await client.send(head + b"x" * sent)
        async with asyncio.timeout(60):
            while sum(each.bytes for each in webhook.connections._open.values()) < 95_000:
                await asyncio.sleep(0.005)
        asked = await webhook.client(SERVER)
        await asked.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n" + b"x" * 20_000)
        assert b"20000 bytes" in await asked.read()
        assert await slow[1].read() == b""
        assert not slow[0].reader.at_eof()


async def test_a_connection_that_sends_without_end_is_closed() -> None:
    async with serving(longest=10_000) as webhook:
        endless = await webhook.client(NOISY)
        # Requests one after another, as a client may send them before the first answer.
        await endless.send((HEAD + b"x" * 1000) * 20)
        await endless.read()
        await webhook.until(0)
        assert await (await webhook.client(SERVER)).answered()


async def test_a_connection_without_a_handshake_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "_ARRIVE_SECONDS", 0.05)
    async with serving() as webhook:
        silent = await webhook.client(NOISY, tls=False)
        assert await silent.read() == b""
        await webhook.until(0)


async def test_a_connection_without_a_request_is_closed() -> None:
    async with serving() as webhook:
        silent = await webhook.client(NOISY)
        (connection,) = webhook.connections._open.values()
        assert connection.deadline is not None
        loop = asyncio.get_running_loop()
        assert (
            loop.time()
            < (connection.deadline.when() or 0.0)
            <= loop.time() + connections_module._ARRIVE_SECONDS
        )
        connection.deadline.reschedule(loop.time())
        assert await silent.read() == b""
        await webhook.until(0)


async def test_noise_leaves_the_server_unharmed() -> None:
    async with serving() as webhook:
        noise = await webhook.client(NOISY, tls=False)
        await noise.send(b"GET / HTTP/1.1\r\n\r\n" * 100)
        await noise.read()
        gone = await webhook.client(NOISY)
        await gone.send(HEAD)
        gone.writer.transport.abort()
        await webhook.until(0)
        assert await (await webhook.client(SERVER)).answered()


# --- turns -------------------------------------------------------------------------------------------


async def test_addresses_take_turns_and_who_has_gone_loses_none() -> None:
    turns, order = Turns(), list[str]()
    go_on = asyncio.Event()

    async def review(address: str, name: str) -> None:
        async with turns.turn(address):
            order.append(name)
            await go_on.wait()

    async def settled() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    many = []
    for number in range(4):
        many.append(asyncio.create_task(review("a", f"a{number}")))
        await settled()
    other = asyncio.create_task(review("b", "b"))
    await settled()
    assert order == ["a0"], "one at a time"
    many[1].cancel()
    await settled()
    go_on.set()
    await asyncio.wait_for(asyncio.gather(*many, other, return_exceptions=True), 60)
    assert order == ["a0", "b", "a2", "a3"]


async def test_a_turn_that_came_as_its_client_left_goes_on_to_the_next() -> None:
    turns = Turns()
    go_on, reached = asyncio.Event(), asyncio.Event()

    async def review(done: asyncio.Event | None) -> None:
        async with turns.turn("a"):
            if done is not None:
                done.set()
            else:
                await go_on.wait()

    first, second, third = (asyncio.create_task(review(done)) for done in (None, asyncio.Event(), reached))
    for _ in range(5):
        await asyncio.sleep(0)
    go_on.set()
    await first  # It has given its turn to the second, which has not yet resumed.
    second.cancel()
    await asyncio.wait_for(reached.wait(), 60)
    await third
