"""Requests to the Kubernetes API through `kubernetes.aio`. Objects are plain dictionaries.

Each failed request raises ApiError: for an HTTP error, for no answer, and for an answer that is not JSON of an
object. A proxy on the way may have written the latter.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp

from dtj.api.job import Manifest
from dtj.api.nesting import read_json
from dtj.cluster.decoding import See, decoded, decoded_event
from dtj.cluster.interface import ApiError
from dtj.cluster.kubernetes_client import client
from dtj.cluster.server_clock import ServerClock

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_TIMEOUT = aiohttp.ClientTimeout(total=30.0)
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class RestClient:
    """Sends requests and reads the answers. Close the client when done. Each request raises ApiError."""

    def __init__(
        self,
        api: client.ApiClient,
        on_answer: Callable[[str, str, int], None] | None = None,
        may_write: Callable[[], bool] = lambda: True,
        clock: ServerClock | None = None,
    ) -> None:
        """Wrap a client.

        on_answer: called once for each request with the verb (as a role names it), the kind and the HTTP status; the
        status is 0 where no answer came.
        may_write: called before each request other than GET; the request is not sent where it returns False.
        clock: gets the Date of each successful answer.
        """
        self._api = api
        self._on_answer = on_answer
        self._may_write = may_write
        self._clock = clock

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def _request(
        self,
        method: str,
        path: str,
        kind: str,
        body: Manifest | list[Manifest] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        verb: str | None = None,
    ) -> Manifest:
        """Return the object in the answer. Arguments: as for `_answer`."""
        async with self._answer(method, path, kind, body, content_type, accept=accept, verb=verb) as answer:
            return await _object(await answer.read())

    async def _watch(
        self,
        path: str,
        kind: str,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        see: See | None = None,
    ) -> AsyncIterator[tuple[str, Any]]:
        """Yield type and object of each event of a watch, until the server ends the watch.

        see: as for `listed`.
        """
        async for line in self._lines(path, kind, {**query, "watch": "true"}, timeout, "watch"):
            try:
                event = await decoded_event(line, see)
            except ValueError:
                raise ApiError(
                    0, "Cut", "the connection ended in the middle of an event of the watch"
                ) from None
            if not isinstance(event, dict) or not isinstance(event.get("object"), Mapping):
                raise ApiError(0, "Unreadable", "the watch sent an event without an object")
            kind_of_event, about = str(event.get("type")), event["object"]
            if kind_of_event == "ERROR":
                raise ApiError(
                    about.get("code") or 500, about.get("reason") or "", about.get("message") or ""
                )
            yield kind_of_event, about
            del event, about  # Free the object, which may be large, before the next event is read.

    async def _lines(
        self,
        path: str,
        kind: str,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        verb: str = "get",
    ) -> AsyncIterator[bytes]:
        """Yield the lines of an answer as they arrive."""
        address = f"{path}?{urlencode(query)}"
        async with self._answer("GET", address, kind, timeout=timeout, verb=verb) as answer:
            # Do not use `readline` of aiohttp: it raises an error for a line that is longer than its buffer.
            rest = b""
            async for block in answer.content.iter_any():
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    yield line
            if rest:
                yield rest

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        kind: str,
        body: Manifest | list[Manifest] | None = None,
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout = _TIMEOUT,
        accept: str = "application/json",
        verb: str | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request. The caller reads the answer in the `async with` block; a failure there raises ApiError too.

        verb: the verb as an RBAC role names it, needed for `list` and `watch`, whose method is also GET.
        """
        headers = {"Accept": accept, "Content-Type": content_type}
        verb = verb or _VERBS[method]
        # Do not pass the body: the client would search it for objects of its own classes, which takes a fifth of a
        # request's time.
        _, url, headers, *_ = await self._api.param_serialize(
            method, path, header_params=headers, auth_settings=["BearerToken"]
        )
        if method != "GET" and not self._may_write():
            raise ApiError(0, "NotLeading", "the request is not sent: another operator may lead now")
        reported = False

        def report(status: int) -> None:
            nonlocal reported
            if self._on_answer is not None and not reported:
                self._on_answer(verb, kind, status)
            reported = True

        sent = self._clock.seconds() if self._clock else 0.0
        try:
            response = await self._api.call_api(method, url, headers, body, _request_timeout=timeout)
            async with response.response as answer:
                if self._clock and answer.status < 400:
                    self._clock.see(answer.headers.get("Date"), sent)
                if answer.status >= 400:
                    content = await answer.read()
                    report(answer.status)
                    raise _api_error(answer.status, content, answer.headers.get("Retry-After"))
                if verb == "watch":
                    # Report a watch when it begins: a watch lasts for minutes, and the request has not failed if the
                    # connection breaks later.
                    report(answer.status)
                yield answer
                report(answer.status)
        except client.ApiException as error:
            report(error.status or 0)
            raise _api_error(error.status or 0, error.body or "") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            report(0)
            raise ApiError(0, "Unreachable", _no_answer(error)) from None


def _no_answer(error: Exception) -> str:
    """Return a phrase that says why no answer came."""
    match error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error:
        case ConnectionRefusedError():
            return "the connection is refused"
        case socket.gaierror():
            return "the host name does not resolve"
        case TimeoutError():
            return "no answer in time"
        case cause:
            return f"{type(cause).__name__}: {cause}"


async def _object(body: bytes) -> Manifest:
    """Return the object in the body of a successful answer. Raises ApiError for another body."""
    try:
        content = await decoded(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise no_object(body)
    return content


def no_object(body: bytes) -> ApiError:
    """Return the error of a successful answer that is not the JSON of an object. body: at least its beginning."""
    begin = body[:100].decode(errors="replace")
    return ApiError(0, "Unreadable", f"the answer is not a JSON object: {begin!r}")


def _api_error(status: int, body: Any, retry_after: str | None = None) -> ApiError:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    try:
        content = read_json(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        content = {}
    wait = (content.get("details") or {}).get("retryAfterSeconds") or retry_after
    return ApiError(
        status,
        content.get("reason") or "Error",
        content.get("message") or text[:500],
        float(wait) if wait and str(wait).isdigit() else None,
    )
