"""Jobs for the tests of metrics."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry

from dtj.admission.server import WebhookServer
from dtj.admission.service import Serving
from dtj.api.job import Manifest
from dtj.reconcile.metrics import OperatorMetrics, event_loop_lag, process_registry
from dtj.status.observed import read_report
from tests.unit.support.kubelet import Ending
from tests.unit.support.world import KEY, World

GPUS = {"worker": {"replicas": 2, "gpus": 4}}
REPORT = """{
  "progress": {"step": 120, "totalSteps": 500, "examplesPerSecond": 1234.5, "loss": 0.7},
  "artifacts": {"checkpoint": {"step": 100, "time": "2026-11-21T12:00:08Z"}},
  "utilisation": {"cpuCores": 3.5, "memoryBytes": 2000000000, "gpuUtilisation": 0.93}
}"""


class MeasuredWorld(World):
    """A world in which each new operator starts its metrics from 0, by the world's clock."""

    def __init__(self, into: CollectorRegistry | None = None, **spec: Any) -> None:
        """into: the registry of the first operator's metrics, if not one of their own."""
        self._into = into
        super().__init__(**spec)

    def new_metrics(self) -> OperatorMetrics:
        self.metrics = OperatorMetrics(self._into, lambda: self.cluster.now.timestamp())
        self.registry, self._into = self.metrics.registry, None
        return self.metrics

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of a series of the job's namespace and strategy."""
        strategy = self.cluster.job()["spec"]["strategy"] if self.there else "Horovod"
        for whose in ({"job_namespace": "ml", "strategy": strategy}, {"strategy": strategy}):
            found = self.registry.get_sample_value(name, whose | labels)
            if found is not None:
                return found
        return None

    def job_value(self, name: str, **labels: str) -> float | None:
        """Return the value of a series of the job itself."""
        return self.value(name, job_name="mnist", **labels)

    def job_series(self) -> set[str]:
        """Return the names of the series with the job's name."""
        return {
            sample.name
            for family in self.registry.collect()
            for sample in family.samples
            if "job_name" in sample.labels
        }

    @property
    def there(self) -> bool:
        return any(name[0] == "DistributedTrainingJob" for name in self.cluster.objects)

    def report(self, text: str = REPORT) -> None:
        """Set the report of rank 0."""
        report, _ = read_report(text)
        assert report is not None
        self.progress.reports[KEY] = report

    def patch(self, **spec: Any) -> None:
        """Change the job's spec as `kubectl patch` does."""

        def change(job: Manifest) -> None:
            job["spec"] |= spec
            job["metadata"]["generation"] += 1

        self.cluster.change(("DistributedTrainingJob", *KEY), change)


def endless(pod: Manifest, ran: int) -> Ending | None:
    """A training that never ends."""
    return None


def all_told() -> CollectorRegistry:
    """All metrics of an operator that leads, of such a job and of the webhook."""
    registry = process_registry(lambda: True, event_loop_lag())
    asyncio.run(trained(registry))
    for part in (Serving, WebhookServer):
        part(registry)
    return registry


async def trained(into: CollectorRegistry | None = None) -> MeasuredWorld:
    """Run a job with eight GPUs and a bucket, which loses a worker and restarts."""
    world = MeasuredWorld(
        into,
        replicaSpecs=GPUS,
        artifacts={"uri": "s3://bucket/jobs"},
        runPolicy={"stallTimeoutSeconds": 600},
    )
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    world.report()
    await world.step()
    world.cluster.end_pod(world.cluster.pod("mnist-worker-1"))
    await world.until(lambda: world.phase == "Restarting")
    await world.until(lambda: world.phase == "Running")
    world.report()
    await world.step()
    world.metrics.answered("create", "Pod", 201)
    return world
