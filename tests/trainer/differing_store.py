"""A proxy in front of the S3 server of the tests, by which that server becomes a store that differs.

The proxy may refuse, cut off and look at requests. The proxy signs each request anew for the server, so that it can
demand headers that the server does not know, and leave these headers out. Clients also reach the proxy under the name
`training.store.example` (virtual-hosted style), and as an HTTP proxy.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import parse_qs, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.trainer import s3_proxy
from tests.trainer.conftest import ACCESS_KEY, BUCKET, SECRET_KEY
from tests.trainer.s3_proxy import ProxyHandler, ProxyServer

HOST = "store.example"
"""The name of the store where the name matters. No resolver knows this name."""
_OF_THE_SIGNATURE = {"authorization", "x-amz-date", "x-amz-security-token"}


@dataclass(frozen=True)
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    headers: Message

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    @property
    def creates(self) -> bool:
        """Whether the request creates an object, or begins to."""
        return (self.method == "PUT" and not self.is_part) or (
            self.method == "POST" and "uploads" in self.query
        )

    @property
    def is_part(self) -> bool:
        return "partNumber" in self.query and self.method == "PUT"

    @property
    def is_of_an_object(self) -> bool:
        """Whether the request reads or writes the content of an object."""
        return (
            self.creates or self.is_part or (self.method in ("GET", "HEAD") and "list-type" not in self.query)
        )

    def has(self, name: str, value: str) -> bool:
        return bool(self.headers.get(name) == value)


@dataclass(frozen=True)
class Answer:
    """An answer of the proxy's own. `read`: the bytes of the request's body that are read before; None: all."""

    status: int
    content: str
    read: int | None = None


def refusal(status: int, code: str, read: int | None = None) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>refused by the proxy</Message></Error>", read)


Rule = Callable[[Asked], Answer | None]
"""The store's own answer to a request; None: that of the server behind it."""


def refuse_conditions(status: int, code: str) -> Rule:
    def rule(asked: Asked) -> Answer | None:
        conditional = asked.method in ("PUT", "POST") and any(
            asked.headers.get(name) for name in ("If-None-Match", "If-Match")
        )
        return refusal(status, code) if conditional else None

    return rule


WITHOUT_CONDITIONS: dict[str, tuple[Rule, tuple[str, ...]]] = {
    "501": (refuse_conditions(501, "NotImplemented"), ()),
    "400": (refuse_conditions(400, "InvalidArgument"), ()),
    "ignores both": (lambda _: None, ("if-none-match", "if-match")),
    "ignores If-Match": (lambda _: None, ("if-match",)),
}
"""Rules and unknown headers of stores without conditional writes."""


@dataclass
class Differing:
    """What the store does that differs. `asked` holds all requests so far."""

    upstream: str
    rule: Rule = lambda _: None
    unknown: tuple[str, ...] = ()
    """Headers that the store ignores: those that start so do not reach the server."""
    chunk: Callable[[Asked, int], bool] = lambda _, start: True
    """Called before each 256 KiB of an answer's content; False breaks the connection."""
    endpoint: str = ""
    asked: list[Asked] = field(default_factory=list)


class _Handler(ProxyHandler):
    store: Differing

    def _serve(self) -> None:
        url = urlsplit(self.path)  # absolute where the client takes this server for an HTTP proxy
        host = url.netloc or self.headers["Host"]
        path = url.path + (f"?{url.query}" if url.query else "")
        if host.startswith(f"{BUCKET}."):
            path = f"/{BUCKET}{path}"
        asked = Asked(self.command, path, self.headers)
        self.store.asked.append(asked)
        own = self.store.rule(asked)
        if own is None:
            self._forward(asked, self._body())
            return
        if own.read is None:
            self._body()
        else:
            self.rfile.read(own.read)
            self.close_connection = True
        self._answer(asked, s3_proxy.Answer(own.status, [], own.content.encode()))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def do_CONNECT(self) -> None:
        """Join the client to the store itself, whatever name the client asks for."""
        self.store.asked.append(Asked("CONNECT", self.path, self.headers))
        self.close_connection = True
        upstream = urlsplit(self.store.upstream)
        with socket.create_connection((upstream.hostname or "", upstream.port or 0)) as there:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pump, args=(there, self.connection))
            back.start()
            _pump(self.connection, there)
            back.join()

    def _forward(self, asked: Asked, body: bytes) -> None:
        left_out = (*self.store.unknown, *s3_proxy.OF_THE_CONNECTION, "host", *_OF_THE_SIGNATURE)
        headers = {n: v for n, v in self.headers.items() if not n.lower().startswith(left_out)}
        request = AWSRequest(asked.method, self.store.upstream + asked.path, headers, body)
        _Signer(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1").add_auth(request)
        with closing(http.client.HTTPConnection(urlsplit(self.store.upstream).netloc)) as connection:
            connection.request(asked.method, asked.path, body, dict(request.headers.items()))
            self._answer(asked, s3_proxy.Answer.of(connection.getresponse()))

    def _answer(self, asked: Asked, answer: s3_proxy.Answer) -> None:
        content = answer.content
        self.begin_answer(answer)
        if self.command == "HEAD":
            return
        for start in range(0, len(content), 2**18):
            if not self.store.chunk(asked, start):
                self.close_connection = True
                return
            self.wfile.write(content[start : start + 2**18])

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(self.size)
        blocks = []
        while size := int(self.rfile.readline(), 16):
            blocks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(blocks)


class _Signer(S3SigV4Auth):
    """Signs what the client said of the payload: the proxy does not change the payload."""

    def payload(self, request: Any) -> str:
        return str(request.headers.get("X-Amz-Content-SHA256", "UNSIGNED-PAYLOAD"))

    def _modify_request_before_signing(self, request: Any) -> None:
        content = self.payload(request)
        super()._modify_request_before_signing(request)
        request.headers.replace_header("X-Amz-Content-SHA256", content)


class _Server(ProxyServer):
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """Say nothing of connections that break."""


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(2**16):
            target.sendall(block)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def differing_store(upstream: str, tls: ssl.SSLContext | None = None) -> Iterator[Differing]:
    """A store on loopback in front of the S3 server at `upstream`. `tls`: the store speaks https with it."""
    store = Differing(upstream)
    handler = type("Handler", (_Handler,), {"store": store})
    server = _Server(("127.0.0.1", 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with s3_proxy.serving(server) as endpoint:
        store.endpoint = endpoint.replace("http:", "https:") if tls else endpoint
        yield store
