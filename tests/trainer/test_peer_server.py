"""The server of a pod that gives files to others: by their SHA-256 alone, and also with strangers at its port."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.trainer.conftest import until
from tests.trainer.loopback_pods import LoopbackPods, free_port

from dtj_trainer import request_server
from dtj_trainer.artifacts import peers
from dtj_trainer.artifacts.manifest import Manifest, StoredFile
from dtj_trainer.artifacts.peers import Askers, PeerServer, trackers_of

SIZE = 9 * 2**20
CONTENT = b"0123456789abcdef" * (SIZE // 16)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HOSTS = 5000


class Server:
    """A server on loopback that offers one file, and another pod of the cluster that asks it."""

    def __init__(self, folder: Path) -> None:
        self._hosts = LoopbackPods.of(0, HOSTS, free_port())
        self.running = PeerServer(self._hosts)
        self.running.start()
        (folder / "a").write_bytes(CONTENT)
        files = (StoredFile("a", "a", SIZE, SHA256), StoredFile("b", "b", 3, "0" * 64))
        manifest = Manifest(1, 1, "", 1, files)
        self.running.files.offer(manifest, folder)

    def connected(self) -> socket.socket:
        return socket.create_connection((self._hosts.listen, self._hosts.port), 60)

    def ask(self, verb: str, path: str, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._hosts.listen, self._hosts.port, timeout=60)
        connection.request(verb, path, headers=headers)
        answer = connection.getresponse()
        try:
            return answer.status, answer.read()
        finally:
            connection.close()

    def status(self, request: bytes) -> bytes:
        """Send raw bytes; return the status of the answer, or nothing."""
        with self.connected() as connection:
            connection.sendall(request)
            return connection.makefile("rb").readline().partition(b" ")[2][:3]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.running.close()


def test_a_file_and_its_rest(server: Server) -> None:
    assert server.ask("GET", f"/checkpoints/{SHA256}") == (200, CONTENT)
    assert server.ask("GET", f"/checkpoints/{SHA256}", Range=f"bytes={SIZE - 5}-") == (206, b"bcdef")
    assert server.ask("GET", f"/checkpoints/{SHA256}", Range=f"bytes={SIZE}-") == (416, b"")


def test_nothing_else_is_given(server: Server) -> None:
    assert server.ask("GET", f"/checkpoints/{'1' * 64}") == (404, b"")
    assert server.ask("GET", f"/checkpoints/{'0' * 64}") == (404, b"")  # A small file of the checkpoint.
    for request in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /checkpoints/../../etc/passwd HTTP/1.1\r\n\r\n",
        b"GET /checkpoints/a HTTP/1.1\r\n\r\n",
        f"GET /checkpoints/{SHA256.upper()} HTTP/1.1\r\n\r\n".encode(),
        f"GET /checkpoints/{SHA256}/../a HTTP/1.1\r\n\r\n".encode(),
        f"DELETE /checkpoints/{SHA256} HTTP/1.1\r\n\r\n".encode(),
        f"POST /checkpoints/{SHA256} HTTP/1.1\r\n\r\n".encode(),
        f"POST /checkpoints/{SHA256}/askers/{HOSTS} HTTP/1.1\r\n\r\n".encode(),
        f"POST /checkpoints/{SHA256}/askers/-1 HTTP/1.1\r\n\r\n".encode(),
        b"\0\xff\r\n\r\n",
    ):
        assert server.status(request) == b"400", request
    assert server.status(b"x" * 5000) == b""


def test_a_range_that_is_none_is_ignored(server: Server) -> None:
    for text in ("bytes=-5", "bytes=1-2", "bytes=a-", "lines=1-"):
        assert server.ask("GET", f"/checkpoints/{SHA256}", Range=text)[0] == 200


def test_each_asker_learns_who_is_above_it(server: Server) -> None:
    def told(pod: int) -> list[int]:
        status, body = server.ask("POST", f"/checkpoints/{SHA256}/askers/{pod}")
        assert status == 200
        pods: list[int] = json.loads(body)["pods"]
        return pods

    assert [told(pod) for pod in (7, 3, 4999, 0, 3)] == [[], [7], [7], [3, 7], [7]]


def test_in_a_job_of_5000_pods_each_passes_a_file_on_to_two_at_most() -> None:
    askers = Askers()
    above = [askers.ask(SHA256, pod) for pod in range(HOSTS)]
    nearest = Counter(pods[0] for pods in above if pods)
    assert (above[0], max(nearest.values()), max(map(len, above))) == ([], 2, 12)


@pytest.mark.bound(
    "agent",
    "Any pod that reaches port 8476",
    "Files that a pod remembers others to have",
    "A fixed number; the oldest go",
)
def test_strangers_make_a_pod_remember_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MOST_FILES", 10)
    askers = Askers()
    for number in range(100):
        askers.ask(f"{number:064x}", 1)
    assert len(askers._files) == 10
    assert askers.ask(f"{99:064x}", 2) == [1]


def test_the_pods_that_know_about_a_file_are_several() -> None:
    assert trackers_of("00000004" + "0" * 56, 5) == [4, 0, 1]
    assert trackers_of("00000001" + "0" * 56, 2) == [1, 0]


@pytest.mark.bound(
    "agent",
    "Any pod that reaches port 8476",
    "Requests that do not end",
    "A time limit for each",
)
def test_slow_requests_end_and_hold_up_nobody_for_long(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_server, "REQUEST_SECONDS", 0.5)
    with ExitStack() as stack:
        for _ in range(2 * request_server.REQUESTS):
            stack.enter_context(server.connected()).sendall(b"GET /checkpoints/")
        assert server.ask("GET", f"/checkpoints/{SHA256}") == (200, CONTENT)
        until(lambda: not workers(), "the end of the slow requests")


@pytest.mark.bound(
    "agent",
    "Any pod that reaches port 8476",
    "Transfers whose reader is slow",
    "Cut off below a rate",
)
def test_a_reader_that_reads_nothing_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SLOW_SECONDS", 0.2)
    monkeypatch.setattr(peers, "SLOW_BYTES_PER_SECOND", 1e9)
    with server.connected() as connection:
        connection.sendall(f"GET /checkpoints/{SHA256} HTTP/1.1\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
        until(lambda: not workers(), "the end of the transfer")
        assert len(connection.makefile("rb").read()) < SIZE


@pytest.mark.bound(
    "agent",
    "Any pod that reaches port 8476",
    "Transfers at once",
    "A fixed number of one file; 429 beyond",
)
def test_more_transfers_than_a_pod_takes_are_refused_at_once(server: Server) -> None:
    asked = f"GET /checkpoints/{SHA256} HTTP/1.1\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(peers.TRANSFERS_OF_A_FILE):
            connection = stack.enter_context(server.connected())
            connection.sendall(asked)
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert server.ask("GET", f"/checkpoints/{SHA256}") == (429, b"")
        assert server.ask("POST", f"/checkpoints/{SHA256}/askers/1")[0] == 200
    until(lambda: not workers(), "the end of the transfers")
    assert server.ask("GET", f"/checkpoints/{SHA256}") == (200, CONTENT)
    # The client has the last byte before the server's thread has left the transfer.
    until(lambda: not server.running._transfers, "the transfers being counted out")


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "peers request"]


def test_a_file_that_became_large_is_not_a_file_of_the_checkpoint(server: Server, tmp_path: Path) -> None:
    with (tmp_path / "a").open("ab") as file:
        file.write(b"more")
    assert server.ask("GET", f"/checkpoints/{SHA256}") == (404, b"")


def test_files_below_the_least_size_are_not_offered() -> None:
    assert peers.LEAST_BYTES == 8 * 2**20
