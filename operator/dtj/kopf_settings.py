"""kopf's settings and its session. kopf triggers passes, and sees only the name and the version of a job."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import aiohttp
import kopf

from dtj.api.identity import PLURAL
from dtj.cluster import kubernetes_client
from dtj.cluster.api import JOBS_PAGE
from dtj.cluster.decoding import ListBody, decoded_event, listed

# A connection may die unnoticed. The API server sends a bookmark on each watch every minute, so that a watch that is
# silent for longer is dead. Every watch also has a maximum age, which the server or else the operator enforces.
_CONNECT_SECONDS = 10.0
_REQUEST_SECONDS = 60.0
_SILENCE_SECONDS = 70.0
_WATCH_SECONDS = 600
_WATCH_SLACK_SECONDS = 30
# Seconds before kopf lists or watches jobs again after an error. The informers log the error, and trigger passes in
# the meantime.
_REFUSED_SECONDS = 20.0
# Seconds before kopf repeats a request whose answer was not JSON.
_NO_JSON_SECONDS = 1.0
# Answers that kopf handles itself. 401: kopf logs in again. 410: the version of the watch is too old, and kopf lists.
_FOR_KOPF = (401, 410)
_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
# The Accept header that asks for the metadata only, which API servers support from 1.15 on. kopf needs no more.
_METADATA = "application/json;as={};g=meta.k8s.io;v=v1,application/json"
_log = logging.getLogger(__name__)


def configure(settings: kopf.OperatorSettings) -> None:
    """Set what kopf watches, and kopf's timeouts, so that no change of kopf's defaults affects the operator."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = JOBS_PAGE
    # kopf keeps the last event of an object in memory for this many seconds.
    settings.queueing.idle_timeout = 0.5
    settings.watching.connect_timeout = settings.networking.connect_timeout = _CONNECT_SECONDS
    settings.watching.inactivity_timeout = _SILENCE_SECONDS
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.client_timeout = _WATCH_SECONDS + _WATCH_SLACK_SECONDS
    settings.networking.request_timeout = _REQUEST_SECONDS


def trigger_session(account: kopf.ConnectionInfo) -> kopf.AiohttpSession:
    """Return kopf's session: with this account, the operator's User-Agent, and answers reduced to identities."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=account.as_ssl_context()),
        headers={**account.as_http_headers(), "User-Agent": kubernetes_client.OPERATOR},
        proxy=account.proxy_url,
        trust_env=account.trust_env,
        response_class=IdentityResponse,
        middlewares=(_metadata_only,),
    )
    return kopf.AiohttpSession(
        server=account.server,
        default_namespace=account.default_namespace,
        priority=account.priority,
        expiration=account.expiration,
        aiohttp_session=session,
    )


async def _metadata_only(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Change kopf's requests for jobs so that they ask for the metadata only, not for whole objects."""
    if request.url.path.endswith(f"/{PLURAL}"):
        kind = "PartialObjectMetadata" if request.url.query.get("watch") else "PartialObjectMetadataList"
        request.headers["Accept"] = _METADATA.format(kind)
    return await handler(request)


class IdentityResponse(aiohttp.ClientResponse):
    """An answer of the API server in which each object is reduced to its identity.

    kopf decodes answers with `json.loads`, and a RecursionError ends kopf. With complete objects, one job that is
    nested too deeply would end the operator. kopf also keeps the last event of each object for a while. Metadata
    alone may have a megabyte, too, in managedFields and annotations.
    """

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the head of the answer. Raises ClientPayloadError when the API server refuses a list or watch of jobs.

        kopf ends after several such answers. With `watchNamespaces`, one namespace whose Role is gone would end the
        service of all others. kopf lists anew after a ClientPayloadError.
        """
        await super().start(connection)
        if self.status >= 400 and self.status not in _FOR_KOPF and self.url.path.endswith(f"/{PLURAL}"):
            _log.debug("GET %s: %s", self.url.path, self.status)
            self.close()
            await asyncio.sleep(_REFUSED_SECONDS)
            raise aiohttp.ClientPayloadError(f"{self.status} {self.reason}")
        if self.status < 400 and self.url.query.get("watch"):
            self.content = cast(aiohttp.StreamReader, _Events(self.content, self.url.path))
        return self

    async def json(self, **options: Any) -> Any:
        """Return the body, with each item of a list reduced to its identity. Raises ClientPayloadError if the answer
        to a successful request is no JSON object.
        """
        if self.status >= 400:
            return await super().json(**options)
        body, items = ListBody(), list[dict[str, Any]]()
        try:
            async for some in listed(self.content.iter_any(), body, _identity):
                items += [_identity(item) for item in some]
        except ValueError:
            begin = body.begin.decode(errors="replace")
            _log.warning("GET %s: the answer is not a JSON object: %r", self.url.path, begin)
            await asyncio.sleep(_NO_JSON_SECONDS)
            raise aiohttp.ClientPayloadError("the answer is not a JSON object") from None
        is_list = body.has_items or "items" in body.fields
        return {**body.fields, "items": items} if is_list else body.fields


class _Events:
    """The lines of a watch, with each object reduced to its identity. An invalid line ends the watch."""

    def __init__(self, content: aiohttp.StreamReader, path: str) -> None:
        self._content = content
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield whole lines. kopf reads a watch only by this method."""
        try:
            async for line in _lines(self._content, size):
                event = await _object(line)
                if event.get("type") != "ERROR":
                    event["object"] = _identity(event.get("object"))
                yield json.dumps(event).encode() + b"\n"
        except ValueError as error:
            _log.warning("GET %s: a line of the watch is not an event in JSON: %s", self._path, error)
            await asyncio.sleep(_NO_JSON_SECONDS)  # Pause here, because kopf starts the next watch at once.


async def _lines(content: aiohttp.StreamReader, size: int) -> AsyncIterator[bytes]:
    # Do not use the reader's `readline`, which limits the length of a line.
    rest = b""
    async for block in content.iter_chunked(size):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _identity(manifest: Any) -> dict[str, Any]:
    """Return name, namespace, uid and version. Raises ValueError."""
    if not isinstance(manifest, Mapping) or not isinstance(metadata := manifest.get("metadata"), dict):
        raise ValueError("it has no Kubernetes object with metadata")
    return {"metadata": {name: metadata[name] for name in _IDENTITY if name in metadata}}


async def _object(text: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises ValueError."""
    read = await decoded_event(text, _identity)
    if not isinstance(read, dict):
        raise ValueError(f"it is a {type(read).__name__}, not an object")
    return read
