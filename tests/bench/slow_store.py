"""A proxy before an object store: answers arrive later, and all of them together at most so fast."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_CHUNK = 1 << 16


class _Limit:
    """Lets bytes pass at a rate, all connections together."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def take(self, amount: int) -> None:
        """Wait until so many bytes may pass."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + amount / self._rate
        await asyncio.sleep(self._free_at - now)


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float, limit: _Limit | None
) -> None:
    """Copy one direction of a connection."""
    try:
        while chunk := await reader.read(_CHUNK):
            await asyncio.sleep(delay)
            if limit:
                await limit.take(len(chunk))
            writer.write(chunk)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@contextmanager
def slow_store(host: str, port: int, *, megabytes_per_second: float, delay: float) -> Iterator[str]:
    """The address of a proxy before `host:port`. `delay`: seconds from a request until it is passed on."""
    loop = asyncio.new_event_loop()
    limit = _Limit(megabytes_per_second * 1e6)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(host, port)
        await asyncio.gather(_pass(reader, forth, delay, None), _pass(back, writer, 0, limit))

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
