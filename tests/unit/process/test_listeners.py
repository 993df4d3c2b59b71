"""The listeners in pods: each listens on IPv4 and IPv6, because a cluster may have only one of them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from dtj.admission.certificates import issue
from dtj.admission.server import WebhookServer
from dtj.admission.service import Serving
from dtj.plan.horovod import sshd_config
from dtj.reconcile.health import Health
from dtj.reconcile.metrics_server import serve_metrics
from dtj_trainer.launch.status_server import StatusServer
from tests.ipv6 import has_ipv6
from tests.unit.support.tls import HOST

Listener = Callable[[int], AbstractAsyncContextManager[None]]


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@asynccontextmanager
async def metrics(port: int) -> AsyncIterator[None]:
    registry = CollectorRegistry()
    Gauge("answered", "It is there.", registry=registry)
    serve_metrics(port, registry)
    yield


@asynccontextmanager
async def webhook(port: int) -> AsyncIterator[None]:
    registry = CollectorRegistry()
    serving = Serving(registry)
    serving.use(issue(HOST, datetime.now(UTC)))
    async with WebhookServer(registry).served(port, serving.context):
        yield


@asynccontextmanager
async def progress(port: int) -> AsyncIterator[None]:
    StatusServer(port, dict, dict, lambda: False).start()  # type: ignore[arg-type]
    yield


@needs_ipv6
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
@pytest.mark.parametrize(
    ("listener", "path"),
    [
        (metrics, "http://{}/metrics"),
        (Health().served, "http://{}/healthz"),
        (webhook, "https://{}/ready"),
        (progress, "http://{}/progress"),
    ],
    ids=["metrics", "health", "webhook", "progress"],
)
async def test_it_answers_on_both_families(listener: Listener, path: str, host: str) -> None:
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    url = path.format(f"{host}:{port}")
    async with (
        asyncio.timeout(60),
        listener(port),
        aiohttp.ClientSession() as session,
        session.get(url, ssl=unchecked) as answer,
    ):
        assert answer.status == 200


def test_sshd_listens_on_both_families_as_it_does_by_itself() -> None:
    assert not {"AddressFamily", "ListenAddress"} & {
        line.split(" ")[0] for line in sshd_config("key").splitlines()
    }
