"""A proxy before an S3 server. It breaks requests as bad networks, stores and credentials do."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.trainer.s3_proxy import Answer, ProxyHandler, ProxyServer, serving

from dtj_trainer.artifacts.store import StoredObject

SLOW_BYTES_PER_SECOND = 8192
BURST_SECONDS, CALM_SECONDS = 3.0, 3.0
"""For so long each request gets 503, and for so long after that all are served."""
_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>{}</Message></Error>'


@dataclass
class Fault:
    """What the proxy does. Faults other than `hang`, `denied` and `expired` let each request pass in the end.

    name: `slow`: a few kilobytes a second, both ways. `slowdown`: bursts of 503. `cut`: each second request of a key
    is cut in the middle of its body, or of the answer's. `lost`: the store does each second write of a key, and its
    answer is lost. `hang`: no answer. `denied`: AccessDenied for keys that contain `key`. `expired`: ExpiredToken.
    `stale`: lists have the objects of `listing`. `error200`: the answer to the first four completions of each
    upload is 200 with an error.
    """

    name: str
    key: str = ""
    listing: list[StoredObject] = field(default_factory=list)
    """With whole keys."""
    injected: int = 0
    began: float = field(default_factory=time.monotonic)
    _seen: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> int:
        """Count a request; return how many of this kind came before."""
        with self._lock:
            self._seen[what] += 1
            return self._seen[what] - 1

    @property
    def in_burst(self) -> bool:
        return (time.monotonic() - self.began) % (BURST_SECONDS + CALM_SECONDS) < BURST_SECONDS

    def inject(self) -> None:
        with self._lock:
            self.injected += 1


class FaultyStore:
    """The running proxy. `fault`: what it does now; None: nothing."""

    def __init__(self, upstream: str) -> None:
        """upstream: host and port of the store."""
        proxy = self
        self.fault: Fault | None = None
        self._ends = threading.Event()

        class Handler(ProxyHandler):
            def do_GET(self) -> None:
                fault, parts = proxy.fault, urlsplit(self.path)
                query = parse_qs(parts.query, keep_blank_values=True)
                key = unquote(parts.path).split("/", 2)[-1]
                size = self.size
                if fault is None:
                    self.pass_on(self.rfile.read(size))
                    return
                writes = self.command in {"PUT", "POST", "DELETE"}
                match fault.name:
                    case "hang":
                        fault.inject()
                        self.rfile.read(size)
                        proxy._ends.wait()
                        self.reset()
                    case "slow":
                        fault.inject()
                        body = b""
                        while len(body) < size:
                            body += self.rfile.read(min(1024, size - len(body)))
                            time.sleep(1024 / SLOW_BYTES_PER_SECOND)
                        self.pass_on(body, slowly=True)
                    case "slowdown" if fault.in_burst:
                        self.refuse(fault, size, 503, "SlowDown")
                    case "cut" if size and not fault.count(f"{self.command} {self.path}") % 2:
                        fault.inject()
                        self.rfile.read(size // 2)
                        self.reset()
                    case "cut" if self.command == "GET" and not fault.count(f"GET {self.path}") % 2:
                        fault.inject()
                        self.pass_on(b"", cut=True)
                    case "lost" if writes and not fault.count(f"{self.command} {self.path}") % 2:
                        fault.inject()
                        self.ask([self.rfile.read(size)])
                        self.reset()
                    case "denied" if fault.key in key:
                        self.refuse(fault, size, 403, "AccessDenied")
                    case "expired":
                        self.refuse(fault, size, 400, "ExpiredToken")
                    case "stale" if self.command == "GET" and "list-type" in query:
                        fault.inject()
                        self.answer(200, _listed(fault.listing, query))
                    case "error200" if (
                        "uploadId" in query and self.command == "POST" and fault.count(key) < 4
                    ):
                        self.refuse(fault, size, 200, "InternalError")
                    case _:
                        self.pass_on(self.rfile.read(size))

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

            def pass_on(self, body: bytes, *, slowly: bool = False, cut: bool = False) -> None:
                answer = self.ask([body])
                content = answer.content
                self.begin_answer(answer)
                if cut:
                    self.wfile.write(content[: len(content) // 2])
                    self.reset()
                elif slowly:
                    for start in range(0, len(content), 1024):
                        self.wfile.write(content[start : start + 1024])
                        time.sleep(1024 / SLOW_BYTES_PER_SECOND)
                else:
                    self.wfile.write(content)

            def refuse(self, fault: Fault, size: int, status: int, code: str) -> None:
                fault.inject()
                self.rfile.read(size)
                self.answer(status, _ERROR.format(code, "injected"))

            def answer(self, status: int, content: str) -> None:
                self.begin_answer(Answer(status, [("Content-Type", "application/xml")], content.encode()))
                if self.command != "HEAD":
                    self.wfile.write(content.encode())

            def reset(self) -> None:
                """Reset the connection."""
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:  # The client has gone.
                    self.close_connection = True

            def finish(self) -> None:
                try:
                    super().finish()
                finally:
                    self.connection.close()

        class Server(ProxyServer):
            def shutdown_request(self, request: object) -> None:
                """Only close: a shutdown would end the connection in order, and not reset it."""
                self.close_request(request)  # type: ignore[arg-type]

        Handler.upstream = upstream
        self.server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def end_hanging(self) -> None:
        """Break the connections that hang."""
        self._ends.set()


def _listed(objects: list[StoredObject], query: dict[str, list[str]]) -> str:
    """Answer a ListObjectsV2 request in one page."""
    prefix, delimiter, after = (query.get(name, [""])[0] for name in ("prefix", "delimiter", "start-after"))
    found, folders = list[str](), dict[str, None]()
    for item in objects:
        if not item.key.startswith(prefix) or item.key <= after:
            continue
        rest = item.key[len(prefix) :]
        if delimiter and delimiter in rest:
            folders[prefix + rest.partition(delimiter)[0] + delimiter] = None
            continue
        found.append(
            f"<Contents><Key>{escape(item.key)}</Key><Size>{item.size}</Size><ETag>{escape(item.etag)}</ETag>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        )
    found = found[: int(query.get("max-keys", ["1000"])[0])]
    common = [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders]
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><IsTruncated>false</IsTruncated>'
        f"{''.join(found)}{''.join(common)}</ListBucketResult>"
    )


@contextmanager
def faulty_store(endpoint: str) -> Iterator[FaultyStore]:
    """Run a proxy before the store at an endpoint, until the end of the block."""
    store = FaultyStore(urlsplit(endpoint).netloc)
    with serving(store.server):
        try:
            yield store
        finally:
            store.end_hanging()
