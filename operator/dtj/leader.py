"""The parts that run while this process is the leader: caches, queue and workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dtj.api.job import Job, Manifest
from dtj.api.status import JobStatus
from dtj.cluster.api import KubernetesApi
from dtj.cluster.server_clock import ServerClock
from dtj.operator_flags import NO_RECORDS, Options
from dtj.plan.job import PlanCache, plan_job
from dtj.plan.record import record_pod
from dtj.reconcile.controller import Controller
from dtj.reconcile.informers import Informers, Lister
from dtj.reconcile.metrics import OperatorMetrics
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.queue import WorkQueue
from dtj.reconcile.reconciler import Reconciler
from dtj.reconcile.record import RecordKeeper, RecordPlaces
from dtj.reconcile.view import Key
from dtj_trainer.contract.history import RecordedPod

# Seconds for passes in progress when the operator ends. A pass takes milliseconds, but a request may hang.
GRACE_SECONDS = 5.0
# A status in which only the counts of pods change is written at most this often: pods of a job start and end one
# after the other.
_COUNTS_SECONDS = 5.0
# The pause after a pass before the next pass over the same job. A pass causes several watch events, and one next pass
# then handles all of them.
_REST_SECONDS = 0.02


def _share(workers: int) -> int:
    """Return how many workers may work on jobs of one namespace at a time. A quarter is left for other namespaces."""
    return max(workers - workers // 4, 1)


class Leader:
    """Reconciles jobs. Start a leader once, and stop it when done."""

    def __init__(
        self, options: Options, cluster: KubernetesApi, metrics: OperatorMetrics, clock: ServerClock
    ) -> None:
        self._options = options
        self._cluster = cluster
        queue = WorkQueue(
            time.monotonic,
            rest=_REST_SECONDS,
            opened=False,
            most=_share(options.workers),
            large=lambda key: self._informers.jobs.is_large(key),
        )
        self._informers = Informers(
            cluster,
            options.namespaces,
            queue.add,
            queue.add_soon,
            self._cached,
            round(options.namespace_memory * 1e6),
        )
        lister = Lister(self._informers)
        self._progress = ProgressPoller(
            queue.add,
            options.progress_interval,
            a_second=options.progress_rate,
            dropped=metrics.dropped_values.inc,
        )
        reconciler = Reconciler(
            cluster,
            lister,
            self._progress,
            metrics,
            clock.now,
            _plans(options),
            counts_after=_COUNTS_SECONDS,
            moves=queue.moved,
            crowded=queue.crowded,
            host_paths=options.data_cache_host_paths,
            recorder=_recorder(options, RecordPlaces(wake=queue.add)),
        )
        self._controller = Controller(queue, reconciler, lister, metrics)
        metrics.namespaces_refused.set_function(lambda: len(self._informers.refused()))
        self._opening: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start watches and workers. Workers get the jobs of a namespace when its caches have synced."""
        self._controller.start(self._options.workers)
        self._informers.start()
        # Open each namespace in a task of its own: the API server may refuse one namespace, for example because its
        # Role is missing, and this must not delay other namespaces.
        self._opening = [
            asyncio.create_task(self._open(namespace)) for namespace in self._informers.namespaces
        ]

    async def _open(self, namespace: str | None) -> None:
        # Before the caches have synced, a pass would consider pods lost that are not listed yet.
        await self._informers.synced(namespace)
        self._controller.queue.open(namespace)

    def changed(self, key: Key, version: str) -> None:
        """Handle kopf's event of a job: the job was created, changed or deleted at this version."""
        self._controller.changed(key, version)

    def _cached(self, key: Key) -> None:
        self._controller.cached(key)

    def figures(self) -> dict[str, object]:
        """Return figures for the health check; a figure that keeps growing shows a leak. Raises Stuck.

        `refused` is no failure of the process: its restart would end the service of the other namespaces.
        """
        refused = self._informers.refused()
        return {
            **self._controller.check(),
            "objects": self._informers.check(),
            "tasks": len(asyncio.all_tasks()),
            **({"refused": refused} if refused else {}),
        }

    async def stop_passes(self, grace: float) -> None:
        """Begin no more passes, and give those in progress `grace` seconds. Stored statuses stay valid."""
        await self._controller.stop(grace)

    async def stop(self) -> None:
        """Stop everything, and close the connections. The next leader continues from the stored statuses."""
        for opening in self._opening:
            opening.cancel()
        await self._controller.stop()
        await self._informers.stop()
        await self._progress.close()
        await self._cluster.close()


def _recorder(options: Options, places: RecordPlaces) -> RecordKeeper | None:
    image = options.record_image or options.tensorboard_image
    if image == NO_RECORDS:
        return None

    def build(job: Job, status: JobStatus, pods: Sequence[RecordedPod], time: str) -> Manifest:
        return record_pod(replace(job, pod_user=options.job_user), status, pods, time, image)

    return RecordKeeper(build, places)


def _plans(options: Options) -> PlanCache:
    return PlanCache(
        partial(
            plan_job,
            tensorboard_image=options.tensorboard_image,
            pod_user=options.job_user,
            operator_namespace=(options.lease_namespace or None) if options.job_network_policies else None,
        )
    )
