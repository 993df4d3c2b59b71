"""Tenants with thousands of objects, refused pods, a silent bucket and slow connections, and honest jobs beside them.

The API server is the tests' double, in this process.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from dtj.api.identity import KIND, LABEL_JOB, LABEL_MANAGED_BY, LABEL_RECORD, MANAGER
from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError
from tests.bench.control_plane import ControlPlane
from tests.bench.honest import BARE, MADE, RATIO, Figures, bare_process, honest_figures, honest_targets
from tests.bench.operator_process import Operator, operating, until
from tests.bench.targets import Target
from tests.cluster.progress import step
from tests.unit.support.http_cluster import HttpCluster, http_cluster
from tests.unit.support.jobs import manifest
from tests.unit.support.kubeconfig import write_kubeconfig

_CONFIGS, _REFUSED, _RECORDED, _SENDERS = 20_000, 300, 60, 200
_HONEST = 10
_WAIT_SECONDS = 600.0
_ATTACK_SECONDS = 60.0
_WRITES = "writes for each job over quota"

TARGETS = (
    *honest_targets("hostile-crowd"),
    Target("hostile-crowd/writes-over-quota/20", _WRITES, 20),
)


async def hostile_crowd() -> dict[str, Figures]:
    """Return the figures without the hostile tenants and with them."""
    with TemporaryDirectory(prefix="dtj-bench-") as name:
        async with http_cluster(moves=False) as cluster:
            kubeconfig = Path(name, "kubeconfig")
            write_kubeconfig(kubeconfig, cluster.url)
            cluster.cluster.refuse = _quota
            plane = ControlPlane(cluster.url, kubeconfig, "", "", kubeconfig, Path(name), {})
            async with operating(plane) as operator, bare_process() as bare:
                with step("an honest job alone"):
                    alone = await _honest(cluster, operator, "alone", bare)
                with step("the objects of hostile tenants"):
                    _fill(cluster)
                    await _end_the_recorded(cluster)
                async with _slow_senders(operator):
                    await asyncio.sleep(_ATTACK_SECONDS)
                    with step("an honest job beside them"):
                        beside = await _honest(cluster, operator, "beside", bare)
            beside[RATIO] = beside[MADE] / alone[MADE]
            beside[_WRITES] = _writes_over_quota(cluster) / _REFUSED
    return {"alone": alone, "beside": beside}


def _quota(given: Manifest) -> ApiError | None:
    if given["kind"] == "Pod" and given["metadata"]["namespace"] == "full":
        return ApiError(
            403, "Forbidden", "exceeded quota: pods, requested: pods=1, used: pods=0, limited: pods=0"
        )
    return None


def _fill(cluster: HttpCluster) -> None:
    """Create the objects of the hostile tenants, of which half of the ConfigMaps name a real job as their owner."""
    for number in range(_REFUSED):
        _create(cluster, "full", f"refused-{number}")
    for number in range(_RECORDED):
        _create(cluster, "silent", f"recorded-{number}", artifacts={"uri": "s3://silent/jobs"})
    owner = cluster.cluster.objects[KIND, "full", "refused-0"]["metadata"]
    for number in range(_CONFIGS):
        named = "refused-0" if number % 2 else f"nobody-{number}"
        metadata: Manifest = {
            "name": f"config-{number}",
            "namespace": "full",
            "labels": {LABEL_MANAGED_BY: MANAGER, LABEL_JOB: named},
        }
        if number % 2:
            reference = {"apiVersion": "dtj.dev/v1alpha1", "kind": KIND, "name": named, "uid": owner["uid"]}
            metadata["ownerReferences"] = [reference | {"controller": True}]
        cluster.cluster.add(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": "x" * 10_000}}
        )


def _create(cluster: HttpCluster, namespace: str, name: str, **spec: object) -> None:
    given = manifest(name, strategy="TorchDistributed", **spec)
    given["metadata"] = {"name": name, "namespace": namespace}
    cluster.cluster.add(given)


async def _end_the_recorded(cluster: HttpCluster) -> None:
    """End the pods of the jobs whose bucket is silent, so that their record pods are next: those stay Pending."""

    def pods() -> list[tuple[str, str, str]]:
        return [name for name in list(cluster.cluster.objects) if name[:2] == ("Pod", "silent")]

    await until("the pods of a silent bucket", lambda: len(pods()) >= 2 * _RECORDED, _WAIT_SECONDS)
    for name in pods():
        cluster.cluster.change(name, lambda pod: pod["status"].update(phase="Succeeded"))

    def recorded() -> bool:
        records = [cluster.cluster.objects[name] for name in pods()]
        return any(LABEL_RECORD in (each["metadata"].get("labels") or {}) for each in records)

    await until("a record pod", recorded, _WAIT_SECONDS)


@asynccontextmanager
async def _slow_senders(operator: Operator) -> AsyncIterator[None]:
    """Keep connections to the operator's ports, of which each sends a byte a second of a request without an end."""
    with ExitStack() as stack:
        connections = []
        for number in range(_SENDERS):
            url = urlsplit((operator.health_url, operator.metrics_url)[number % 2])
            connection = stack.enter_context(closing(socket.socket()))
            connection.setblocking(False)
            connection.connect_ex((str(url.hostname), url.port))
            connections.append(connection)

        async def send() -> None:
            while True:
                for connection in connections:
                    try:
                        connection.send(b"G")
                    except OSError:  # The operator has closed it, as it should.
                        continue
                await asyncio.sleep(1)

        sending = asyncio.create_task(send())
        try:
            yield
        finally:
            sending.cancel()


async def _honest(
    cluster: HttpCluster, operator: Operator, place: str, bare: Callable[[], Awaitable[float]]
) -> Figures:
    made_ms = []
    for number in range(_HONEST):
        begun, name = time.perf_counter(), f"honest-{number}"
        _create(cluster, place, name)

        def made(name: str = name) -> bool:
            return all(
                ("Pod", place, f"{name}-worker-{index}") in cluster.cluster.objects for index in range(2)
            )

        await until("the pods of an honest job", made, _WAIT_SECONDS, every=0.002)
        made_ms.append((time.perf_counter() - begun) * 1000)
    return await honest_figures(made_ms, operator) | {BARE: await bare()}


def _writes_over_quota(cluster: HttpCluster) -> float:
    written = ("POST", "PUT", "PATCH", "DELETE")
    return sum("/namespaces/full/" in each.path and each.method in written for each in cluster.requests)
