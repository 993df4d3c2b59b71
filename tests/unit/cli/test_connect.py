"""The operator's connection to the API server, with and without a proxy in the environment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dtj.cluster.api import connect
from dtj.reconcile.informers import Informers
from tests.unit.support.http_cluster import http_cluster
from tests.unit.support.kubeconfig import write_kubeconfig


def reach(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_kubeconfig(folder / "config", url)
    config = "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(config, str(folder / "config"))


@pytest.mark.parametrize(
    ("proxy", "direct", "asked"),
    [
        (None, None, False),
        ("http://proxy:3128", None, True),
        ("http://proxy:3128", "api.example", False),
        ("http://proxy:3128", "other.example", True),
    ],
)
async def test_the_environment_is_asked_at_each_request_only_where_it_names_a_proxy(
    proxy: str | None, direct: str | None, asked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (("https_proxy", proxy), ("no_proxy", direct)):
        for spelt in (name, name.upper()):
            monkeypatch.delenv(spelt, raising=False)
        if value:
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("all_proxy", raising=False)
    reach("https://api.example:6443", tmp_path, monkeypatch)

    api = await connect()

    session = api._api.rest_client._create_pool_manager()
    assert session.trust_env is asked
    await session.close()
    await api.close()


async def test_requests_are_answered_beside_the_watches_of_many_namespaces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    namespaces = [f"team-{number}" for number in range(30)]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mnist-worker-0", "namespace": "team-0"}}
    async with asyncio.timeout(180), http_cluster(moves=False) as server:
        reach(server.url, tmp_path, monkeypatch)
        api = await connect()
        informers = Informers(api, namespaces, *3 * [lambda key: None])
        informers.start()
        for namespace in namespaces:
            await informers.synced(namespace)
        while len(server.watches) < 5 * len(namespaces):
            await asyncio.sleep(0.01)

        await api.create(pod)

        await informers.stop()
        await api.close()
