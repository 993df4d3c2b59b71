"""The start barrier by itself: its two sides as threads of this process.

* all pods, late pods, missing pods
* pods of another job or attempt, pods that come twice or go
* connections that say nothing, or something else
* thousands of connections
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.patience import PATIENCE
from tests.trainer.conftest import free_ports, until

from dtj_trainer import contract
from dtj_trainer.launch import peers, pod_connections
from dtj_trainer.launch.peers import PeersUnreachable, PortTaken, StartBarrier
from dtj_trainer.launch.settings import Settings, read_settings

WAIT = 30 * PATIENCE


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


def settings_of(port: int, index: int, pods: int, timeout: float = 60, attempt: int = 1) -> Settings:
    pod = contract.PodInfo(role="worker", index=index, slots=1)
    return read_settings(
        {
            "DTJ_POD": pod.to_json(),
            "DTJ_UID": "a-uid",
            "DTJ_ATTEMPT": str(attempt),
            "DTJ_WORLD_SIZE": str(pods),
            "DTJ_START_BARRIER": f"localhost:{port}",
            "DTJ_PEER_TIMEOUT_SECONDS": str(timeout),
        }
    )


class Pods:
    """Pods that wait, each in a thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(64)
        self.given_up = threading.Event()

    def start(self, settings: Settings) -> Future[None]:
        barrier = StartBarrier(settings, self.given_up.is_set)
        barrier.open()
        return self._pool.submit(barrier.wait)


@pytest.fixture
def pods():
    running = Pods()
    yield running
    running.given_up.set()
    running._pool.shutdown()


def connect(port: int) -> socket.socket:
    """A connection, as soon as somebody listens."""

    def attempt() -> socket.socket | None:
        try:
            return socket.create_connection(("localhost", port), 10)
        except OSError:
            return None

    return until(attempt, "the barrier listens")


def hello(index: int, attempt: int = 1, job: str = "a-uid") -> bytes:
    return json.dumps({"job": job, "attempt": attempt, "index": index}).encode() + b"\n"


def answered(port: int) -> None:
    """Say something wrong to the barrier, and wait for its answer."""
    with connect(port) as stranger:
        stranger.sendall(b"?\n")
        stranger.makefile().read()


def test_all_pods_go_when_the_last_has_come(port, pods):
    early = [pods.start(settings_of(port, index, 4)) for index in (2, 0, 1)]
    with connect(port):
        assert not any(each.done() for each in early)
    last = pods.start(settings_of(port, 3, 4))

    assert [each.result(WAIT) for each in (*early, last)] == [None] * 4


def test_the_pod_of_rank_0_may_be_the_last(port, pods):
    early = [pods.start(settings_of(port, index, 3)) for index in (1, 2)]
    until(lambda: all(each.running() for each in early), "both try to connect")

    assert pods.start(settings_of(port, 0, 3)).result(WAIT) is None
    assert [each.result(WAIT) for each in early] == [None, None]


def test_the_others_wait_for_a_pod_of_rank_0_that_still_restores(port, pods, monkeypatch):
    """Its time limit begins when it is ready itself, and the others hear that it lives."""
    monkeypatch.setattr(peers, "LOG_EVERY_SECONDS", 0.1)
    restoring = StartBarrier(settings_of(port, 0, 3, timeout=1), pods.given_up.is_set)
    restoring.open()
    with connect(port) as one:
        one.sendall(hello(1))
        two = pods.start(settings_of(port, 2, 3, timeout=3))
        lines = one.makefile()
        while lines.readline() != "1 of 3 pods are not ready: worker-0\n":
            assert not two.done()
        ended = time.monotonic() + 4
        while time.monotonic() < ended:
            assert lines.readline() == "1 of 3 pods are not ready: worker-0\n"
        restoring.wait()
        assert two.result(WAIT) is None


def test_a_job_of_one_pod_waits_for_nobody(port, pods):
    assert pods.start(settings_of(port, 0, 1)).result(WAIT) is None


def test_the_pod_of_rank_0_names_who_is_missing(port, pods):
    host = pods.start(settings_of(port, 0, 5, timeout=8))
    other = pods.start(settings_of(port, 2, 5, timeout=8))

    with pytest.raises(
        PeersUnreachable, match="after 8 s 3 of 5 pods are not ready: worker-1, worker-3, worker-4"
    ):
        host.result(WAIT)
    with pytest.raises(
        PeersUnreachable,
        match=rf"worker-0 did not answer at localhost:{port} for 8 s: (it accepted|Connection)",
    ):
        other.result(WAIT)


def test_many_missing_pods_are_named_by_the_first_of_them(port, pods):
    with pytest.raises(
        PeersUnreachable, match=r"99 of 100 pods are not ready: worker-1, .*worker-20 and 79 more$"
    ):
        pods.start(settings_of(port, 0, 100, timeout=0.1)).result(WAIT)


def test_a_name_that_does_not_resolve_is_tried_until_the_time_is_over(pods):
    settings = replace(settings_of(1, 1, 2, timeout=1), start_barrier=("no-such-pod.invalid", 8475))

    with pytest.raises(PeersUnreachable, match="its name does not resolve"):
        pods.start(settings).result(WAIT)


@pytest.mark.parametrize("other", [hello(1, attempt=2), hello(1, job="another-uid"), hello(0), hello(2)])
def test_a_pod_of_another_attempt_or_job_is_refused(port, pods, other):
    host = pods.start(settings_of(port, 0, 2))
    with connect(port) as stranger:
        stranger.sendall(other)
        assert stranger.makefile().read() == "refused: this is the start barrier of another job or attempt\n"
    assert not host.done()

    assert pods.start(settings_of(port, 1, 2)).result(WAIT) is None
    assert host.result(WAIT) is None


def test_a_refused_pod_says_so(port, pods):
    pods.start(settings_of(port, 0, 2))

    with pytest.raises(PeersUnreachable, match="for 3 s: refused: this is the start barrier of another job"):
        pods.start(settings_of(port, 1, 2, timeout=3, attempt=2)).result(WAIT)


def test_garbage_on_the_port_disturbs_nobody(port, pods, monkeypatch):
    monkeypatch.setattr(pod_connections, "HELLO_SECONDS", 1.0)
    host = pods.start(settings_of(port, 0, 2))
    silent = connect(port)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5000, b"{}\n", b"\xff\n", hello(1)[:-1] + b" \n"):
        with connect(port) as stranger:
            stranger.sendall(garbage)
            try:
                answer = stranger.makefile(errors="replace").read()
            except ConnectionResetError:  # More was sent than read.
                answer = ""
            assert answer == "" or answer.startswith("refused")
    # A connection that says nothing is closed.
    assert silent.recv(1) == b""
    assert not host.done()

    assert pods.start(settings_of(port, 1, 2)).result(WAIT) is None
    assert host.result(WAIT) is None


def test_a_line_may_come_in_pieces_and_a_pod_may_come_again(port, pods):
    host = pods.start(settings_of(port, 0, 3))
    with connect(port) as first:
        first.sendall(hello(1))
        with connect(port) as again:
            again.sendall(hello(1)[:7])
            # The barrier has read the piece once it has read what came after it.
            answered(port)
            again.sendall(hello(1)[7:])
            assert first.recv(1) == b""
            pods.start(settings_of(port, 2, 3)).result(WAIT)
            assert again.makefile().read() == "go\n"
    assert host.result(WAIT) is None


def test_a_pod_may_come_again_at_the_moment_its_first_connection_ends(port):
    """The selector returns both connections at once, and the line on the second one drops the first one."""
    first, again = socket.socket(), socket.socket()
    pod_0 = peers.BarrierHost(settings_of(port, 0, 3), 3, threading.Event())

    def come_again() -> None:
        again.sendall(hello(1))
        first.close()

    # Each step, and the numbers of pods and of other connections after it.
    steps = [
        (lambda: first.connect(("127.0.0.1", port)), (0, 1)),
        (lambda: first.sendall(hello(1)), (1, 0)),
        (lambda: again.connect(("127.0.0.1", port)), (1, 1)),
        (come_again, (1, 0)),
    ]
    expected = (0, 0)

    def next_step() -> bool:
        nonlocal expected
        if (len(connections.pods), len(connections._strangers)) != expected:
            return False
        if not steps:
            return True
        step, expected = steps.pop(0)
        step()
        return False

    listener = socket.create_server(("127.0.0.1", port))
    with again, pod_connections.PodConnections(listener, pod_0.hellos.get, 3) as connections:
        pod_0.wait(connections, next_step)
        assert connections._of_pods[1].socket.getpeername() == again.getsockname()


def test_strangers_do_not_take_the_descriptors_of_the_pods(port, pods, monkeypatch):
    monkeypatch.setattr(pod_connections, "HELLO_SECONDS", 1000.0)
    monkeypatch.setattr(pod_connections, "_STRANGERS", 6)
    host = pods.start(settings_of(port, 0, 2))
    strangers = [connect(port) for _ in range(20)]
    for stranger in strangers:
        stranger.settimeout(WAIT)

    assert {stranger.recv(1) for stranger in strangers[:14]} == {b""}
    assert pods.start(settings_of(port, 1, 2)).result(WAIT) is None
    assert host.result(WAIT) is None
    for stranger in strangers:
        stranger.close()


def test_a_line_without_an_end_is_not_waited_for(port, pods):
    accepted = []

    def answers() -> None:
        with contextlib.suppress(OSError):  # The end of the test.
            while True:
                accepted.append(listener.accept()[0])
                accepted[-1].sendall(b"x" * 5000)

    with socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=answers, daemon=True).start()
        with pytest.raises(PeersUnreachable, match="for 3 s: it is no start barrier: it sent a line of"):
            pods.start(settings_of(port, 1, 2, timeout=3)).result(WAIT)
        listener.shutdown(socket.SHUT_RDWR)
    for connection in accepted:
        connection.close()


@pytest.mark.parametrize("silent", [True, False], ids=["a stopped process", "a proxy without a server"])
def test_a_connection_without_a_line_is_no_answer(port, pods, monkeypatch, silent):
    monkeypatch.setattr(peers, "SILENCE_SECONDS", 0.1)
    accepted = []

    def accepts() -> None:
        with contextlib.suppress(OSError):  # The end of the test.
            while True:
                accepted.append(listener.accept()[0])
                if not silent:
                    accepted[-1].recv(1024)  # What is unread at the close would reset the connection.
                    accepted[-1].close()

    with socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=accepts, daemon=True).start()
        with pytest.raises(PeersUnreachable, match="for 1 s: it accepted the connection and sent no line"):
            pods.start(settings_of(port, 1, 2, timeout=1)).result(WAIT)
        listener.shutdown(socket.SHUT_RDWR)
    for connection in accepted:
        connection.close()


def test_a_pod_that_goes_is_waited_for_anew(port, pods):
    host = pods.start(settings_of(port, 0, 3))
    with connect(port) as gone:
        gone.sendall(hello(1))
    # The barrier has read the line before it answers once, and the end of the connection before it answers again.
    for _ in range(2):
        answered(port)
    two = pods.start(settings_of(port, 2, 3))
    answered(port)
    assert not host.done()

    assert pods.start(settings_of(port, 1, 3)).result(WAIT) is None
    assert [host.result(WAIT), two.result(WAIT)] == [None, None]


def test_those_who_wait_hear_who_is_missing(port, pods, monkeypatch, caplog):
    monkeypatch.setattr(peers, "LOG_EVERY_SECONDS", 0.1)
    pods.start(settings_of(port, 0, 3))
    with connect(port) as one:
        one.sendall(hello(1))
        assert one.makefile().readline() == "1 of 3 pods are not ready: worker-2\n"


def test_a_superseded_pod_gives_up(port, pods):
    waiting = [pods.start(settings_of(port, index, 3)) for index in (0, 1)]
    pods.given_up.set()

    assert [each.result(WAIT) for each in waiting] == [None, None]


def test_a_taken_port_is_waited_for_and_then_named(port, pods):
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(
            PortTaken, match=f"port {port} of the start barrier can't be opened: Address already in"
        ):
            pods.start(settings_of(port, 0, 2, timeout=0.5)).result(WAIT)
        late = pods.start(settings_of(port, 0, 2))
    pods.start(settings_of(port, 1, 2))
    assert late.result(WAIT) is None


def test_thousands_of_pods_meet_on_one_selector(port, pods):
    """The work is linear. The file limit of the process is raised for the time of the wait, and only then."""
    count = 1500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    here = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (here, hard))
    connections: list[socket.socket] = []
    try:
        host = pods.start(settings_of(port, 0, count + 1, timeout=600))
        for index in range(1, count + 1):
            connections.append(connect(port))
            connections[-1].sendall(hello(index))
        assert host.result(WAIT) is None
        assert {connection.recv(16) for connection in connections} == {b"go\n"}
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (here, hard)
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_pod_of_rank_0_raises_its_file_limit_for_the_wait():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    listener = socket.create_server(("127.0.0.1", 0))
    with pod_connections.PodConnections(listener, lambda _: None, soft + 1):
        raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised == (soft + 1 + 128 if hard == resource.RLIM_INFINITY else min(soft + 129, hard))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
