"""An API server behind HTTP, and a client that uses the server by KUBECONFIG."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dtj.client import AsyncClient, pod_logs, watching
from tests.unit.support.configured_cluster import configured_cluster
from tests.unit.support.http_cluster import HttpCluster


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpCluster]:
    """It knows one token, and nothing moves by itself. The client looks and tries again after 0.02 s."""
    monkeypatch.setattr(watching, "_FIRST_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(pod_logs, "_LOOK_SECONDS", 0.02)
    async with configured_cluster(tmp_path, monkeypatch) as running:
        yield running


@pytest.fixture
async def client(server: HttpCluster) -> AsyncIterator[AsyncClient]:
    """It ends with the test."""
    async with AsyncClient() as made:
        yield made
