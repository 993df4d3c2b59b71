"""The operator beside jobs that bring their code in ConfigMaps, which it neither receives nor holds."""

from __future__ import annotations

import copy
import gzip
import hashlib
import os
import pickle
from pathlib import Path

import pytest
from aiohttp import web

from dtj.api.identity import KIND
from dtj.client import AsyncClient, DistributedTrainingJob
from dtj.cluster.api import KubernetesApi
from dtj.cluster.kubernetes_client import client as kubernetes
from dtj.reconcile.informers import Informers
from tests.unit.support.configured_cluster import configured_cluster
from tests.unit.support.http_cluster import Answer, HttpCluster
from tests.unit.support.jobs import manifest

JOBS = 100
CACHES = ("jobs", "pods", "services", "configs", "deployments", "records")


async def held(server: HttpCluster) -> tuple[int, int]:
    """The bytes in the caches of an operator that starts now, and those that it received of ConfigMaps."""
    received = 0

    async def counted(request: web.Request, answer: Answer) -> web.StreamResponse:
        nonlocal received
        response = await answer()
        if request.path.endswith("/configmaps") and isinstance(response, web.Response):
            received += len(response.body or b"")  # type: ignore[arg-type]  # a list is sent as bytes
        return response

    server.fault = counted
    api = KubernetesApi(kubernetes.ApiClient(kubernetes.Configuration(host=server.url)))
    informers = Informers(api, (), *3 * [lambda _: None])
    informers.start()
    try:
        await informers.synced()
        assert len(informers.jobs) == JOBS
        return len(pickle.dumps([getattr(informers, cache).items() for cache in CACHES])), received
    finally:
        await informers.stop()
        await api.close()
        server.fault = None


@pytest.mark.bound(
    "operator",
    "Who may submit code in ConfigMaps",
    "Bytes of the code that it receives and holds",
    "none: the ConfigMaps have none of the labels that it selects",
)
async def test_the_operator_holds_no_byte_of_the_code_of_100_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = gzip.compress(os.urandom(500_000))
    (tmp_path / "archive").write_bytes(content)
    code = {
        "configMap": "code-0",
        "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "entrypoint": "a.py",
    }
    job = DistributedTrainingJob.from_cluster(manifest("job-0", code=code, command=[], args=[]))
    async with configured_cluster(tmp_path, monkeypatch) as server:
        async with AsyncClient() as client:
            await client.submit(job, archive=tmp_path / "archive")
        objects = server.cluster.objects
        stored, config = objects[KIND, "ml", "job-0"], objects["ConfigMap", "ml", "code-0"]
        assert len(config["binaryData"]["code.tar.gz"]) > 600_000
        assert config["metadata"]["ownerReferences"][0]["uid"] == stored["metadata"]["uid"]
        for number in range(1, JOBS):
            for made, name in ((stored, f"job-{number}"), (config, f"code-{number}")):
                fresh = {**made, "metadata": copy.deepcopy(made["metadata"]) | {"name": name, "uid": name}}
                server.cluster.put(fresh)
        server.tokens = None
        with_code, received = await held(server)
        for number in range(JOBS):
            server.cluster.remove(("ConfigMap", "ml", f"code-{number}"))
        without, _ = await held(server)
    assert received < 1_000
    assert with_code == without
