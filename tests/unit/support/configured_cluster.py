"""The fake cluster behind HTTP, as the kubeconfig of this process names it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.unit.support.http_cluster import HttpCluster, http_cluster
from tests.unit.support.kubeconfig import TOKEN, write_kubeconfig


@asynccontextmanager
async def configured_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpCluster]:
    """Serve a cluster in which nothing moves by itself. The only valid token is in the kubeconfig in `folder`."""
    async with http_cluster(moves=False) as running:
        running.tokens = {TOKEN}
        write_kubeconfig(folder / "config", running.url)
        monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
        yield running
