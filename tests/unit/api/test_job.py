"""The requests of KubernetesApi to delete a pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from dtj.cluster.api import KubernetesApi
from dtj.cluster.interface import ApiError
from tests.unit.support.api_answers import refused


async def deleted(status: int, *, force: bool) -> list[tuple[str, Any]]:
    """Delete a pod on a server that answers with this status; path and body of each request."""
    requests = []

    async def answer(request: web.Request) -> web.Response:
        requests.append((f"{request.method} {request.path}", json.loads(await request.read())))
        if status >= 400:
            return refused(status, "Refused", "no")
        return web.json_response({"kind": "Status", "status": "Success"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    settings = client.Configuration()
    settings.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = KubernetesApi(client.ApiClient(settings))
    try:
        await api.delete_pod("ml", "mnist-worker-0", "uid-1", force=force)
    finally:
        await api.close()
        await runner.cleanup()
    return requests


@pytest.mark.parametrize("force", [False, True])
async def test_only_that_very_pod_is_deleted_and_without_its_grace_only_by_force(force: bool) -> None:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "uid-1"}}

    assert await deleted(200, force=force) == [
        (
            "DELETE /api/v1/namespaces/ml/pods/mnist-worker-0",
            options | ({"gracePeriodSeconds": 0} if force else {}),
        )
    ]


@pytest.mark.parametrize("status", [404, 409])
async def test_a_pod_that_is_gone_already_is_no_error(status: int) -> None:
    assert len(await deleted(status, force=True)) == 1


async def test_a_refusal_is_an_error() -> None:
    with pytest.raises(ApiError, match="403 Refused: no"):
        await deleted(403, force=True)
