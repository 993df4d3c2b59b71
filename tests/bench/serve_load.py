"""A load on a server, in a process of its own: `python -m tests.bench.serve_load < LOAD`.

Each client has a connection, and sends its next request when it has the answer to the last one. Requests are whole
before the clock starts, and answers are only looked through for their end. A request so costs the client some 20
microseconds of one processor, which it shares with the server.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.figures import percentile

ROOT = Path(__file__).parents[2]
_END = b"\r\n\r\n"
_LEAST_TURNS = 2
"""Answers to each client that a measurement has at least: answers of a batch come together."""
_SECONDS = 60.0
"""In which an answer has to come."""


class Load(NamedTuple):
    """What a server gets. `seconds` are measured after `warm` seconds, more where answers take long.

    `requests` are whole, and sent in turn.
    """

    port: int
    clients: int
    requests: Sequence[bytes]
    seconds: float
    warm: float = 0.5


class Measured(NamedTuple):
    """Answers a second; and seconds: the median of an answer's, and what 99 % have not more than."""

    rate: float
    p50: float
    p99: float


def request(method: str, path: str, body: bytes, **headers: str) -> bytes:
    """A request of HTTP; `headers` have `_` for `-`."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: bench",
        f"Content-Length: {len(body)}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + _END + body


def measure(load: Load) -> Measured:
    """Run a process that puts the load on a server. Raises RuntimeError with what went wrong."""
    asked = {**load._asdict(), "requests": [each.decode("latin-1") for each in load.requests]}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.bench.serve_load"],
        cwd=ROOT,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=load.seconds + load.warm + 2 * _SECONDS,
    )
    if ended.returncode:
        raise RuntimeError((ended.stderr.strip() or "no output").splitlines()[-1])
    return Measured(*json.loads(ended.stdout))


class _Client:
    """A connection, with what has come of an answer."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), _SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.began = 0.0
        self._got = b""

    def send(self, content: bytes) -> None:
        self._got = b""
        self.began = time.perf_counter()
        self.socket.sendall(content)

    def answered(self) -> bool:
        """Receive; return whether the answer is whole. Raises RuntimeError for one that is no 200."""
        more = self.socket.recv(1 << 18)
        if not more:
            raise RuntimeError("the server closed a connection")
        self._got = self._got + more if self._got else more
        end = self._got.find(_END)
        if end < 0:
            return False
        head = self._got[:end].lower()
        if head[9:12] != b"200":
            raise RuntimeError(f"the server answered {self._got[:500]!r}")
        _, found, rest = head.partition(b"\r\ncontent-length:")
        if not found:
            raise RuntimeError(f"an answer without its length: {self._got[:500]!r}")
        return len(self._got) >= end + len(_END) + int(rest.split(b"\r\n", 1)[0])


def put(load: Load) -> Measured:
    """Put the load on a server. Raises OSError, and RuntimeError for other answers than 200."""
    poll = select.epoll()
    clients = {}
    for _ in range(load.clients):
        client = _Client(load.port)
        clients[client.socket.fileno()] = client
        poll.register(client.socket, select.EPOLLIN)
    sent, times = 0, list[float]()
    for client in clients.values():
        client.send(load.requests[sent % len(load.requests)])
        sent += 1
    begun = time.perf_counter() + load.warm
    end = begun + load.seconds
    now = 0.0
    while now < end or len(times) < _LEAST_TURNS * load.clients:
        events = poll.poll(_SECONDS)
        if not events:
            raise RuntimeError(f"no answer in {_SECONDS:g} seconds")
        for number, _ in events:
            client = clients[number]
            if not client.answered():
                continue
            now = time.perf_counter()
            if begun <= now:
                times.append(now - client.began)
            client.send(load.requests[sent % len(load.requests)])
            sent += 1
    return Measured(len(times) / (now - begun), percentile(times, 0.5), percentile(times, 0.99))


def main() -> None:
    """See the module."""
    read: dict[str, Any] = json.load(sys.stdin)
    read["requests"] = [each.encode("latin-1") for each in read["requests"]]
    print(json.dumps(put(Load(**read))))


if __name__ == "__main__":
    main()
