"""Around every request: whose it is, and what a browser may do with the answer."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = "/api/"
MOST_BODY_BYTES = 8 << 20
"""Of a request. The largest is a job file of 1 MiB, each character of which JSON may write as six."""
_TOO_LARGE = f"the request is larger than {MOST_BODY_BYTES >> 20} MiB"
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""What a browser lets the page do: its own files and requests to its own server."""
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer that does not set them itself."""


def own_hosts(port: int) -> frozenset[str]:
    """Return the values of the header Host that name this server on loopback."""
    names = {f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")}
    # A browser leaves out the port of HTTP.
    return frozenset(names | ({"127.0.0.1", "localhost", "[::1]"} if port == 80 else set()))


class Access:
    """Refuse requests of other pages and of programs without the token.

    A page of another site reaches a server on loopback through the browser of the user: by a name that resolves to
    127.0.0.1 (DNS rebinding, refused by the header Host) or by a cross-site request (refused by the token, which no
    cookie carries, and by the header Origin).
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str]) -> None:
        """Wrap an ASGI application. hosts: the accepted values of the header Host."""
        self._app = app
        self._wanted = f"Bearer {token}".encode()
        self._hosts = {host.encode() for host in hosts}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (n.lower().encode(), v.encode())
                        for n, v in _HEADERS.items()
                        if n.lower().encode() not in given
                    ),
                ]
            await send(message)

        refused = self._refusal(scope)
        await (refused or self._app)(scope, _limited(receive), sent)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        if _one(scope, b"host") not in self._hosts:
            return _answer(HTTPStatus.MISDIRECTED_REQUEST, "the header Host names another server")
        origins = _all(scope, b"origin")
        if any(origin not in self._origins for origin in origins):
            return _answer(HTTPStatus.FORBIDDEN, "the request comes from another page")
        if not _is_small(_all(scope, b"content-length")):
            return _answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TOO_LARGE)
        if scope["path"].startswith(API) and not self._has_token(scope):
            return _answer(
                HTTPStatus.UNAUTHORIZED,
                "the request needs the header `Authorization: Bearer TOKEN`; `dtj ui` prints the address with it",
                {"WWW-Authenticate": "Bearer"},
            )
        return None

    def _has_token(self, scope: Scope) -> bool:
        given = _one(scope, b"authorization")
        return given is not None and hmac.compare_digest(given, self._wanted)


def _limited(receive: Receive) -> Receive:
    """Return `receive`, which ends a request whose body is too large and had no Content-Length."""
    size = 0

    async def received() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MOST_BODY_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TOO_LARGE)
        return message

    return received


def _is_small(lengths: Iterable[bytes]) -> bool:
    return all(length.isdigit() and int(length[:20]) <= MOST_BODY_BYTES for length in lengths)


def _all(scope: Scope, name: bytes) -> list[bytes]:
    return [value for header, value in scope["headers"] if header == name]


def _one(scope: Scope, name: bytes) -> bytes | None:
    """Return the value of a header that stands once; None where it is missing or stands twice."""
    values = _all(scope, name)
    return values[0] if len(values) == 1 else None


def _answer(status: HTTPStatus, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"message": message}, status, headers)
