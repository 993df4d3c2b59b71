"""The HTTPS server of the webhook."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from dtj.admission.connections import Connections, Turns
from dtj.admission.review import Malformed, review
from dtj.api.nesting import read_json

PATH, READY = "/validate", "/ready"
# An API server accepts objects up to 3 MiB. An update sends two objects, the user and the options.
_LARGEST = 2 * 3 * 2**20 + 2**18
# With the head of the request, and with what arrives after a body that is too large.
_LONGEST_CONNECTION = _LARGEST + 2**20
_BODY_SECONDS = 2.0
_VERDICTS = ("allowed", "refused", "malformed", "error")


class Server:
    """Answers AdmissionReviews of the API server."""

    def __init__(self, registry: CollectorRegistry, host_paths: Sequence[str] = ()) -> None:
        """host_paths: see `review`."""
        self._host_paths = host_paths
        self._requests = Counter(
            "dtj_admission_requests",
            "Requests of the API server to judge a job, by verdict.",
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
            # The body is read before the turn: a client that sends slowly delays nobody.
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
            verdict = None  # The client has gone, or it was too slow.
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
