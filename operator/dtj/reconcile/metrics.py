"""The operator's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector


def process_registry(leads: Callable[[], bool]) -> CollectorRegistry:
    """What each replica of the operator tells, also one that waits."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    leader = Gauge("dtj_leader", "1 in the operator that works, 0 in one that waits.", registry=registry)
    leader.set_function(lambda: float(leads()))
    return registry


class Metrics:
    """Metrics of the work on jobs; a replica that waits has none of them, rather than zeros."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """registry: the process's; by default one of their own."""
        self.registry = registry or CollectorRegistry()
        self.jobs = Gauge("dtj_jobs", "Jobs by phase.", ["phase"], registry=self.registry)
        self.finished = Counter(
            "dtj_jobs_finished", "Jobs that ended, by how.", ["result", "reason"], registry=self.registry
        )
        self.restarts = Counter(
            "dtj_job_restarts", "New attempts, by cause.", ["cause"], registry=self.registry
        )
        for cause in ("application", "infrastructure"):
            self.restarts.labels(cause)  # a series from the start: rate() does not see one that begins at 1
        self.reconcile = Histogram(
            "dtj_reconcile_duration_seconds",
            "Time of one pass over a job.",
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.failures = Counter("dtj_reconcile_failures", "Passes that broke off.", registry=self.registry)
        self.queue_depth = Gauge("dtj_queue_depth", "Jobs that wait for a pass.", registry=self.registry)
        self.api_errors = Counter(
            "dtj_api_errors",
            "Requests that the API server refused or did not answer (code 0).",
            ["verb", "kind", "code"],
            registry=self.registry,
        )

    def api_error(self, verb: str, kind: str, code: int) -> None:
        """Count a failed request."""
        self.api_errors.labels(verb, kind, str(code)).inc()
