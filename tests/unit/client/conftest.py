"""An API server behind HTTP, and a client that uses it by KUBECONFIG."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dtj.client import AsyncClient, pod_logs, watching
from tests.unit.support.http_cluster import HttpCluster, http_cluster
from tests.unit.support.kubeconfig import TOKEN, write_kubeconfig


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpCluster]:
    """It knows one token, and nothing moves by itself. The client looks and tries again after 0.02 s."""
    monkeypatch.setattr(watching, "_FIRST_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(pod_logs, "_LOOK_SECONDS", 0.02)
    async with http_cluster(moves=False) as running:
        running.tokens = {TOKEN}
        write_kubeconfig(tmp_path / "config", running.url)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield running


@pytest.fixture
async def client(server: HttpCluster) -> AsyncIterator[AsyncClient]:
    """It ends with the test."""
    async with AsyncClient() as made:
        yield made
