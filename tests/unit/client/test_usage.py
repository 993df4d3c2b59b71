"""The CPU and memory usage of pods, from an API server with and without metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from dtj.client import AsyncClient, PodUsage
from tests.unit.support.kubeconfig import write_kubeconfig

METRICS = "/apis/metrics.k8s.io/v1beta1/namespaces/ml/pods"


async def asked(tmp_path: Path, status: int) -> dict[str, PodUsage] | None:
    """The client's answer from a server whose metrics answer with this status."""

    async def metrics(request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "dtj.dev/job=mnist"
        sidecar = {"name": "logger", "usage": {"cpu": "1", "memory": "1Ki"}}
        trainer = {"name": "trainer", "usage": {"cpu": "1500m", "memory": "2Gi"}}
        pod = {"metadata": {"name": "mnist-worker-0"}, "containers": [sidecar, trainer]}
        starting = {"metadata": {"name": "mnist-worker-1"}, "containers": []}
        return web.json_response({"items": [pod, starting]}, status=status)

    app = web.Application()
    app.router.add_get(METRICS, metrics)
    async with TestServer(app) as server:
        write_kubeconfig(tmp_path / "config", str(server.make_url("/")).rstrip("/"))
        async with AsyncClient(kubeconfig=str(tmp_path / "config"), namespace="ml") as client:
            return await client.usage("mnist")


async def test_the_use_of_the_container_that_trains_is_told_by_pod(tmp_path: Path) -> None:
    assert await asked(tmp_path, 200) == {"mnist-worker-0": PodUsage("1500m", "2Gi")}


@pytest.mark.parametrize("status", [404, 503])
async def test_a_cluster_that_does_not_measure_is_told_apart(status: int, tmp_path: Path) -> None:
    assert await asked(tmp_path, status) is None
