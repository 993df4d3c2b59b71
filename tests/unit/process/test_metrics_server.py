"""The server of /metrics, which any pod may reach: few connections, short ones, and one text for many."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from dtj.local.machine import free_ports
from dtj.reconcile import metrics_server
from dtj.reconcile.metrics_server import MOST_CONNECTIONS, Page, serve_metrics


def threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.fixture
def port() -> int:
    registry = CollectorRegistry()
    Gauge("answered", "It is there.", registry=registry)
    (port,) = free_ports(1)
    serve_metrics(port, registry)
    return port


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


@contextlib.contextmanager
def silent(port: int, number: int) -> Iterator[list[socket.socket]]:
    """Connections of another address that send nothing."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port), 60, source_address=("127.0.0.2", 0))
            )
            for _ in range(number)
        ]


@pytest.mark.bound(
    "metrics server",
    "Any pod that reaches the port",
    "Threads",
    "32",
)
def test_silent_connections_take_few_threads_and_hold_up_no_scrape(port: int) -> None:
    with silent(port, 4 * MOST_CONNECTIONS) as clients:
        assert "answered 0.0" in scraped(port)
        assert clients[0].recv(1) == b""
        assert threads() <= 2 * MOST_CONNECTIONS


def test_a_silent_connection_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server._Quiet, "timeout", 0.05)
    with silent(port, 1) as (client,):
        assert client.recv(1) == b""


@pytest.mark.bound(
    "metrics server",
    "Any pod that reaches the port",
    "The time that texts of metrics take",
    "One text a second",
)
def test_requests_of_one_second_get_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    registry, read = CollectorRegistry(), 0

    def value() -> float:
        nonlocal read
        read += 1
        return float(read)

    Gauge("read", "How often.", registry=registry).set_function(value)
    page = Page(registry)

    def asked(**headers: str) -> list[bytes]:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "QUERY_STRING": "name[]=no", **headers}
        return list(page(environ, lambda status, _: None))

    first = asked()
    assert b"read 1.0" in first[0]
    assert asked(HTTP_ACCEPT="text/html") == first
    assert asked(HTTP_ACCEPT_ENCODING="gzip") != first
    now = 102.0
    assert b"read 3.0" in asked()[0]
    assert len(page._kept) == 1
