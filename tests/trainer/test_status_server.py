"""The port of a pod that the operator asks for its progress, with strangers at it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.trainer.conftest import Workspace, free_ports, until

from dtj_trainer import request_server
from dtj_trainer.launch import status_server
from dtj_trainer.launch.status_server import StatusServer

LOOPBACK = "127.0.0.1"


class Server:
    """A server on loopback."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.asked = 0
        self.running = StatusServer(
            self.port, lambda: {"progress": {"step": 7}}, lambda: {"dtj_step": 7.0}, self._ask, LOOPBACK
        )
        self.running.start()

    def _ask(self) -> None:
        self.asked += 1

    def connected(self) -> socket.socket:
        return socket.create_connection((LOOPBACK, self.port), 60)

    def ask(self, verb: str, path: str) -> tuple[int, str, str]:
        """Return status, type and text of an answer."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        connection.request(verb, path)
        answer = connection.getresponse()
        try:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
        finally:
            connection.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.running._server.close()


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "status request"]


def test_answers(server: Server) -> None:
    status, kind, text = server.ask("GET", "/progress")
    assert (status, kind, json.loads(text)) == (200, "application/json", {"progress": {"step": 7}})
    metrics = "# TYPE dtj_step gauge\ndtj_step 7.0\n"
    assert server.ask("GET", "/metrics") == (200, "text/plain; version=0.0.4", metrics)
    assert server.ask("POST", "/stacks")[0] == 202
    assert server.asked == 1
    only = "this server answers only GET /progress, GET /metrics and POST /stacks\n"
    assert server.ask("GET", "/stacks")[::2] == (404, only)
    assert server.ask("POST", "/progress")[::2] == (404, only)
    assert server.ask("DELETE", "/progress")[::2] == (400, only)
    assert server.ask("GET", "/../etc/passwd")[0] == 404


@pytest.mark.bound(
    "agent",
    "Any pod that reaches port 8474",
    "Connections of the status server",
    "A time limit for each, and a fixed number of threads",
)
def test_slow_clients_end_and_others_are_answered(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    read, lock, now_read, most_read = request_server._read_request, threading.Lock(), 0, 0

    def counted(connection: socket.socket) -> bytes:
        # Threads are not counted: a thread lives on for a moment after the server has let the next request in.
        nonlocal now_read, most_read
        with lock:
            now_read += 1
            most_read = max(most_read, now_read)
        try:
            return read(connection)
        finally:
            with lock:
                now_read -= 1

    monkeypatch.setattr(request_server, "_read_request", counted)
    monkeypatch.setattr(request_server, "REQUEST_SECONDS", 0.5)
    with ExitStack() as stack:
        for _ in range(2 * request_server.REQUESTS):
            stack.enter_context(server.connected()).sendall(b"GET /prog")
        assert server.ask("GET", "/progress")[0] == 200
        assert most_read <= request_server.REQUESTS
        until(lambda: not workers(), "the end of the slow requests")


def test_clients_that_leave_or_send_too_much_are_told_nowhere(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    for content in (b"GET /progress HTTP/1.1\r\n\r\n", b"", b"x" * 100_000, b"\x00\xff\r\n\r\n"):
        for _ in range(5):
            with server.connected() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.sendall(content)
    assert server.ask("GET", "/progress")[0] == 200
    until(lambda: not workers(), "the end of the requests")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("in_container", "host"), [(False, LOOPBACK), (True, "")])
def test_under_dtj_run_nobody_on_the_network_asks(
    make_workspace: Callable[..., Workspace],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_container: bool,
    host: str,
) -> None:
    """A pod of this machine listens on loopback, and one of a cluster on all addresses."""
    from dtj_trainer.contract import ENV_POD, PodInfo
    from dtj_trainer.launch import pod as pods
    from dtj_trainer.launch.settings import read_settings

    heard: list[str] = []

    class Listens(status_server.StatusServer):
        def __init__(self, port: int, *given: object) -> None:
            heard.append(str(given[-1]))
            raise OSError("heard")

    monkeypatch.setattr(pods, "StatusServer", Listens)
    monkeypatch.setattr(pods.PodSync, "make_folders", lambda _: None)
    environment = {ENV_POD: PodInfo(role="worker", index=0).to_json(), "DTJ_PROGRESS_PORT": "1"}
    environment |= {} if in_container else {"DTJ_ROOT": str(tmp_path)}
    pods.Pod(read_settings(environment), log_names=None).prepare()
    assert heard == [host]
