"""kopf, and nothing else: events in, keys on the queue. Also the process of the operator.

Only `on.event` and `index` are used: kopf then writes nothing to anybody's objects, no finalizer, no annotation.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import kopf
import prometheus_client

from dtj.api.identity import API_VERSION, GROUP, LABEL_JOB, LABEL_MANAGED_BY, MANAGER, PLURAL, VERSION
from dtj.api.managed_by import other_manager_of
from dtj.api.status import Phase
from dtj.cluster.api import KubernetesApi, connect
from dtj.reconcile.controller import Controller
from dtj.reconcile.metrics import Metrics
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.queue import WorkQueue
from dtj.reconcile.reconciler import Reconciler
from dtj.reconcile.view import Key, Owned, OwnedPod, controller_uid
from dtj.status.pods import view_pod

_log = logging.getLogger(__name__)
_WORKERS = 16
_CRD_SECONDS = 3.0
_CHILDREN = f"{LABEL_MANAGED_BY}={MANAGER},{LABEL_JOB}"
_ENDED = (Phase.SUCCEEDED.value, Phase.FAILED.value)


class IndexView:
    """kopf's indices as the controller's view of the cluster."""

    def __init__(
        self,
        jobs: kopf.Index[Key, Mapping[str, Any]],
        pods: kopf.Index[Key, OwnedPod],
        services: kopf.Index[Key, Owned],
        configs: kopf.Index[Key, Owned],
    ) -> None:
        self._jobs, self._pods, self._services, self._configs = jobs, pods, services, configs

    def job(self, key: Key) -> Mapping[str, Any] | None:
        # The last: after a gap in the watch, an earlier job of the name may still be there.
        return next(reversed(list(self._jobs.get(key, ()))), None)

    def pods(self, key: Key) -> Sequence[OwnedPod]:
        return list(self._pods.get(key, ()))

    def services(self, key: Key) -> Sequence[Owned]:
        return list(self._services.get(key, ()))

    def configs(self, key: Key) -> Sequence[Owned]:
        return list(self._configs.get(key, ()))

    def active(self) -> Sequence[Key]:
        return [key for key, job in self._each() if job["status"].get("phase") not in _ENDED]

    def phases(self) -> Counter[str]:
        return Counter(job["status"].get("phase") or Phase.PENDING.value for _, job in self._each())

    def _each(self) -> Iterable[tuple[Key, Mapping[str, Any]]]:
        # A copy of the keys: Prometheus asks from a thread of its own.
        jobs = ((key, job) for key in list(self._jobs) for job in self._jobs.get(key, ()))
        return ((key, job) for key, job in jobs if not other_manager_of(job))


@kopf.index(GROUP, VERSION, PLURAL, id="jobs")
async def index_job(body: kopf.Body, **_: Any) -> dict[Key, Mapping[str, Any]]:
    """Keep what a pass needs of a job."""
    metadata = {
        key: body["metadata"].get(key)
        for key in ("name", "namespace", "uid", "generation", "resourceVersion", "deletionTimestamp")
    }
    manifest = {
        "metadata": metadata,
        "spec": dict(body.get("spec") or {}),
        "status": dict(body.get("status") or {}),
    }
    return {(metadata["namespace"], metadata["name"]): manifest}


@kopf.index("", "v1", "pods", id="pods")
async def index_pod(body: kopf.Body, **_: Any) -> dict[Key, OwnedPod]:
    """Keep what the status depends on of a pod."""
    return {_job_key(body): OwnedPod(controller_uid(body), view_pod(body))}


@kopf.index("", "v1", "services", id="services")
async def index_service(body: kopf.Body, **_: Any) -> dict[Key, Owned]:
    """Keep whose a Service is."""
    return {_job_key(body): Owned(body["metadata"]["name"], controller_uid(body))}


@kopf.index("", "v1", "configmaps", id="configs")
async def index_config(body: kopf.Body, **_: Any) -> dict[Key, Owned]:
    """Keep whose a ConfigMap is, and what it says."""
    return {
        _job_key(body): Owned(body["metadata"]["name"], controller_uid(body), dict(body.get("data") or {}))
    }


@kopf.on.event(GROUP, VERSION, PLURAL)
async def job_event(namespace: str | None, name: str, memo: kopf.Memo, **_: Any) -> None:
    """A job came, changed or went."""
    memo.controller.queue.add((namespace, name))


@kopf.on.event("", "v1", "pods")
@kopf.on.event("", "v1", "services")
@kopf.on.event("", "v1", "configmaps")
async def child_event(body: kopf.Body, memo: kopf.Memo, **_: Any) -> None:
    """Something of a job came, changed or went."""
    memo.controller.queue.add(_job_key(body))


def _job_key(body: Mapping[str, Any]) -> Key:
    metadata = body["metadata"]
    return metadata["namespace"], metadata["labels"][LABEL_JOB]


@kopf.on.login()
async def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """As the pod's service account, or by KUBECONFIG where there is none."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


@kopf.on.startup()
async def start(
    settings: kopf.OperatorSettings,
    memo: kopf.Memo,
    **indices: Any,
) -> None:
    """Set kopf up and start the controller; its first key comes once kopf has filled the indices."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500
    for plural in ("pods", "services", "configmaps"):
        # Server-side: other people's pods never reach the operator.
        settings.watching.label_selectors["", "v1", plural] = _CHILDREN
    settings.networking.connect_timeout = 10
    metrics = Metrics()
    prometheus_client.start_http_server(memo.metrics_port, registry=metrics.registry)
    cluster: KubernetesApi = await connect(metrics.api_error)
    view = IndexView(indices["jobs"], indices["pods"], indices["services"], indices["configs"])
    queue = WorkQueue(time.monotonic)
    progress = ProgressPoller(queue.add, memo.progress_interval)
    reconciler = Reconciler(cluster, view, progress, metrics, lambda: datetime.now(UTC))
    memo.cluster, memo.progress = cluster, progress
    memo.controller = Controller(queue, reconciler, view, metrics)
    memo.controller.start(memo.workers)


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Stop between two requests; the next operator goes on from what is stored."""
    await memo.controller.stop()
    await memo.progress.close()
    await memo.cluster.close()


@kopf.on.probe(id="controller", errors=kopf.ErrorsMode.PERMANENT)
async def probe(memo: kopf.Memo, **_: Any) -> dict[str, float]:
    """Fails when the queue is stuck."""
    figures: dict[str, float] = memo.controller.check()
    return figures


def main() -> None:
    """`dtj-operator`: run the operator until it is told to end."""
    parser = argparse.ArgumentParser(
        prog="dtj-operator", description="The operator of DistributedTrainingJobs."
    )
    parser.add_argument(
        "--namespace", action="append", default=[], help="serve this namespace only; may be repeated"
    )
    parser.add_argument(
        "--workers", type=int, default=_WORKERS, help="passes at a time (default: %(default)s)"
    )
    parser.add_argument("--health-port", type=int, default=8080, help="GET /healthz (default: %(default)s)")
    parser.add_argument("--metrics-port", type=int, default=8081, help="GET /metrics (default: %(default)s)")
    parser.add_argument(
        "--progress-interval", type=float, default=5.0, help="seconds between two looks at a job's progress"
    )
    parser.add_argument("--log-level", default=os.environ.get("DTJ_LOG_LEVEL", "INFO"))
    arguments = parser.parse_args()
    kopf.configure(log_format=kopf.LogFormat.FULL)
    logging.getLogger().setLevel(arguments.log_level.upper())
    for chatty in ("kopf.objects", "kopf.activities.probe", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    asyncio.run(_run(arguments))


async def _resource_served() -> None:
    """Wait for the CRD: kopf looks only once for what it is to watch."""
    cluster = await connect()
    try:
        while not await cluster.serves(API_VERSION):
            _log.warning("the cluster does not know %s yet: kubectl apply -f manifests/crd", API_VERSION)
            await asyncio.sleep(_CRD_SECONDS)
    finally:
        await cluster.close()


async def _run(arguments: argparse.Namespace) -> None:
    await _resource_served()
    memo = kopf.Memo(
        workers=arguments.workers,
        metrics_port=arguments.metrics_port,
        progress_interval=arguments.progress_interval,
    )
    await kopf.operator(
        memo=memo,
        standalone=True,
        clusterwide=not arguments.namespace,
        namespaces=arguments.namespace,
        liveness_endpoint=f"http://0.0.0.0:{arguments.health_port}/healthz",
    )
