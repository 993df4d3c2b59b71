"""kopf's settings and its session: kopf triggers passes and reads no more of a job than its name and its version."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import kopf

from dtj.cluster import user_agent
from dtj.cluster.decoding import decoded

# A connection may die without a sign. The API server writes a bookmark on each watch every minute, so one that says
# nothing for longer is dead; and none is trusted for ever: the server ends it in time, or else the operator does.
_CONNECT_SECONDS = 10.0
_REQUEST_SECONDS = 60.0
_SILENCE_SECONDS = 70.0
_WATCH_SECONDS = 600
_WATCH_SLACK_SECONDS = 30
# Before kopf repeats a request whose answer was no JSON.
_NO_JSON_SECONDS = 1.0
_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_log = logging.getLogger(__name__)


def configure(settings: kopf.OperatorSettings) -> None:
    """What kopf watches, and how long it waits for it; nothing that matters is left to its defaults."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = 200
    # kopf keeps the last event of an object in memory for this many seconds.
    settings.queueing.idle_timeout = 0.5
    settings.watching.connect_timeout = settings.networking.connect_timeout = _CONNECT_SECONDS
    settings.watching.inactivity_timeout = _SILENCE_SECONDS
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.client_timeout = _WATCH_SECONDS + _WATCH_SLACK_SECONDS
    settings.networking.request_timeout = _REQUEST_SECONDS


def trigger_session(account: kopf.ConnectionInfo) -> kopf.AiohttpSession:
    """Kopf's session: as this account, with the operator's User-Agent, and with answers of identities alone."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=account.as_ssl_context()),
        headers={**account.as_http_headers(), "User-Agent": user_agent.OPERATOR},
        proxy=account.proxy_url,
        trust_env=account.trust_env,
        response_class=IdentityResponse,
    )
    return kopf.AiohttpSession(
        server=account.server,
        default_namespace=account.default_namespace,
        priority=account.priority,
        expiration=account.expiration,
        aiohttp_session=session,
    )


class IdentityResponse(aiohttp.ClientResponse):
    """An answer of the API server in which each object is its identity alone.

    kopf reads answers with `json.loads` and ends at a RecursionError: in whole objects, one job that is nested too
    deeply would end the operator. Besides, kopf keeps the last event of each object for a while.
    """

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the head of the answer."""
        await super().start(connection)
        if self.status < 400 and self.url.query.get("watch"):
            self.content = cast(aiohttp.StreamReader, _Events(self.content, self.url.path))
        return self

    async def json(self, **options: Any) -> Any:
        """The body, a list's items as identities. Raises ClientPayloadError where a success has no such body."""
        if self.status >= 400:
            return await super().json(**options)
        body = await self.read()
        try:
            answer = await _object(body)
            if "items" in answer:
                answer["items"] = [_identity(item) for item in answer["items"] or ()]
        except ValueError:
            begin = body[:100].decode(errors="replace")
            _log.warning("GET %s: the answer is no JSON of an object: %r", self.url.path, begin)
            await asyncio.sleep(_NO_JSON_SECONDS)
            raise aiohttp.ClientPayloadError("no JSON of an object") from None
        return answer


class _Events:
    """The lines of a watch, each event with the identity of its object. A line that is no such event ends them."""

    def __init__(self, content: aiohttp.StreamReader, path: str) -> None:
        self._content = content
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Whole lines; kopf reads a watch by nothing else."""
        try:
            async for line in _lines(self._content, size):
                event = await _object(line)
                if event.get("type") != "ERROR":
                    event["object"] = _identity(event.get("object"))
                yield json.dumps(event).encode() + b"\n"
        except ValueError as error:
            _log.warning("GET %s: a line of the watch is no JSON of an object: %s", self._path, error)
            await asyncio.sleep(_NO_JSON_SECONDS)  # kopf watches anew without a pause


async def _lines(content: aiohttp.StreamReader, size: int) -> AsyncIterator[bytes]:
    # Not by the reader's own lines: those have a longest length.
    rest = b""
    async for block in content.iter_chunked(size):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _identity(manifest: Any) -> dict[str, Any]:
    """Raises ValueError."""
    if not isinstance(manifest, dict) or not isinstance(metadata := manifest.get("metadata"), dict):
        raise ValueError("no object")
    return {"metadata": {name: metadata[name] for name in _IDENTITY if name in metadata}}


async def _object(text: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    read = await decoded(text)
    if not isinstance(read, dict):
        raise ValueError("another type")
    return read
