"""The operator's counters and histograms for Prometheus. `job_series` has the series of each job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from dtj.api.reasons import FAILED, FAILURE_CLASSES, Reason
from dtj.api.status import ConditionType, JobStatus, Phase
from dtj.api.stored_job import AnyJob
from dtj.reconcile.job_series import JobSeries, job_figures, strategy_label, unix
from dtj.reconcile.view import Key
from dtj.status.observed import Observed
from dtj.status.pods import PodView
from dtj.status.restart_policy import restarted
from dtj_trainer.contract.distribution import version

LAG_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""The buckets of `event_loop_lag`."""
_PASS_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# The buckets range from the start of a small job whose images are on the node to a day in a queue.
_START_SECONDS = (1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 10800, 43200, 86400)
_CAUSES = ("application", "in_place", "infrastructure", "evaluator")
_ENDS = (
    (Phase.SUCCEEDED, Reason.JOB_SUCCEEDED),
    *((Phase.FAILED, reason) for reason in FAILED),
)
# Disable the series `_created` of each counter, its time of creation: rate() recognizes a reset by the value.
disable_created_metrics()  # type: ignore[no-untyped-call]


def event_loop_lag() -> Histogram:
    """Return the histogram of the seconds by which the event loop wakes too late. It has no registry yet."""
    return Histogram(
        "dtj_event_loop_lag_seconds",
        "Delay with which the operator's event loop wakes up, measured 10 times a second: the time for which one "
        "pass kept all others waiting.",
        buckets=LAG_SECONDS,
        registry=None,
    )


def process_registry(leads: Callable[[], bool], lag: Histogram) -> CollectorRegistry:
    """Return the metrics that every replica of the operator has, the waiting ones too. lag: from `event_loop_lag`."""
    registry = CollectorRegistry()
    registry.register(lag)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    leader = Gauge("dtj_leader", "1 in the operator that holds the lease, 0 in others.", registry=registry)
    leader.set_function(lambda: float(leads()))
    build = Gauge("dtj_build_info", "1, for the operator's version.", ["version"], registry=registry)
    build.labels(version()).set(1)
    return registry


def _restarts(status: JobStatus, cause: str) -> int:
    """Return the number of restarts of a cause. Restarts in place do not count as restarts of cause application."""
    restarts = status.restarts
    in_place = restarts.in_place or 0
    return restarts.application - in_place if cause == "application" else getattr(restarts, cause) or 0


class OperatorMetrics:
    """Metrics of the work on jobs. A replica that waits for leadership has none of them, not zeros.

    Counters begin at 0 with each process, as Prometheus expects. Only series of `job_series` have a label with the
    job's name, because those series end with the job.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """registry: the registry of the process; by default a new registry.
        clock: returns seconds of a monotonic clock, by which the metrics count how long jobs hold GPUs.
        """
        self.registry = to = registry or CollectorRegistry()
        self.jobs = JobSeries(clock, self._end)
        to.register(self.jobs)
        whose = ["job_namespace", "strategy"]
        self._finished = Counter(
            "dtj_jobs_finished",
            "Jobs that ended, by result and reason.",
            [*whose, "result", "reason"],
            registry=to,
        )
        self._restarts = Counter(
            "dtj_job_restarts",
            "Starts of the training, or of replicas of it, after a loss, by cause: application (new pods) and "
            "in_place (the same pods) count against runPolicy.backoffLimit.",
            [*whose, "cause"],
            registry=to,
        )
        self._failures = Counter(
            "dtj_job_failures",
            "Failures that led to a restart or ended the job, by status.failure.class.",
            [*whose, "failure_class"],
            registry=to,
        )
        self._queued = Histogram(
            "dtj_job_queue_wait_seconds",
            "Time from a job's start (status.startTime: taken up, or resumed) until the last of its workers and "
            "parameter servers had a node; observed when all run.",
            ["strategy"],
            buckets=_START_SECONDS,
            registry=to,
        )
        self._running = Histogram(
            "dtj_job_time_to_running_seconds",
            "Time from a job's start (status.startTime: taken up, or resumed) until all its pods ran, where nothing "
            "failed before.",
            ["strategy"],
            buckets=_START_SECONDS,
            registry=to,
        )
        self._recovery = Histogram(
            "dtj_job_recovery_seconds",
            "Time from a loss until all pods of the job ran again.",
            ["strategy"],
            buckets=_START_SECONDS,
            registry=to,
        )
        self.reconcile = Histogram(
            "dtj_reconcile_duration_seconds",
            "Time of one pass over a job.",
            buckets=_PASS_SECONDS,
            registry=to,
        )
        self.reconcile_wait = Histogram(
            "dtj_reconcile_wait_seconds",
            "Time that a job waited for a pass after something had happened to it.",
            buckets=_PASS_SECONDS,
            registry=to,
        )
        self.reconcile_failures = Counter(
            "dtj_reconcile_failures", "Passes that ended by an error.", registry=to
        )
        self.refused_statuses = Counter(
            "dtj_statuses_refused",
            "Statuses that the API server refused (422), and that were stored without reports of pods.",
            registry=to,
        )
        self.dropped_values = Counter(
            "dtj_pod_values_dropped",
            "Values in reports of pods that do not fit the schema of the status, and are dropped.",
            registry=to,
        )
        self.queue_depth = Gauge("dtj_queue_depth", "Jobs that wait for a pass.", registry=to)
        self.namespaces_refused = Gauge(
            "dtj_namespaces_refused",
            "Namespaces of watchNamespaces in which the API server refuses to list or watch jobs or their objects; "
            "without watchNamespaces, 1 if the API server refuses it for the whole cluster. /healthz names them.",
            registry=to,
        )
        self._requests = Counter(
            "dtj_api_requests",
            "Requests to the API server, except watches of jobs and requests for the lease, by HTTP status; code 0: "
            "no answer.",
            ["verb", "kind", "code"],
            registry=to,
        )

    def _end(self, namespace: str, strategy: str) -> None:
        """Drop the counters of a namespace and a strategy."""
        for counter in (self._finished, self._restarts, self._failures):
            counter.remove_by_labels({"job_namespace": namespace, "strategy": strategy})

    def answered(self, verb: str, kind: str, code: int) -> None:
        """Count a request. code: the HTTP status; 0 when no answer came."""
        self._requests.labels(verb, kind, str(code)).inc()

    def see(self, key: Key, job: AnyJob, status: JobStatus, observed: Observed) -> None:
        """Replace the figures of a job's series."""
        figures = job_figures(job, status, observed)
        whose = figures.namespace, figures.strategy
        if self.jobs.keep(key, figures):
            # Create the series at 0: rate() does not count the first increase of a series that begins at 1.
            for cause in _CAUSES:
                self._restarts.labels(*whose, cause)
            for phase, reason in _ENDS:
                self._finished.labels(*whose, phase.lower(), reason)
            for histogram in (self._queued, self._running, self._recovery):
                histogram.labels(figures.strategy)

    def count(self, job: AnyJob, old: JobStatus, new: JobStatus, pods: Sequence[PodView]) -> None:
        """Count the changes from the old status to the status that was just stored."""
        strategy = strategy_label(job)
        whose = job.namespace, strategy
        if new.conditions.finished and not old.conditions.finished:
            ended = next(c for c in new.conditions if c.type.value == (new.phase or ""))
            self._finished.labels(*whose, (new.phase or "").lower(), ended.reason).inc()
        for cause in _CAUSES:
            more = _restarts(new, cause) - _restarts(old, cause)
            self._restarts.labels(*whose, cause).inc(max(more, 0))
        kind, number = _failures(old, new)
        if number:
            self._failures.labels(*whose, kind).inc(number)
        if start := _started(job, old, new, pods):
            self._running.labels(strategy).observe(start.running)
            if start.queued is not None:
                self._queued.labels(strategy).observe(start.queued)
        recovery = _recovered(old, new)
        if recovery is not None:
            self._recovery.labels(strategy).observe(recovery)


@dataclass(frozen=True)
class _Started:
    """The duration of a completed start or resumption of a job, in seconds."""

    running: float
    """Seconds until all pods ran."""
    queued: float | None
    """Seconds until the last worker or parameter server had a node; None if no pod has a scheduling time."""


def _started(job: AnyJob, old: JobStatus, new: JobStatus, pods: Sequence[PodView]) -> _Started | None:
    """Return the duration of the start that `new` reports as complete; None if `new` reports no completed start.

    A start after a failure is a recovery, for which the function also returns None.
    """
    done, begun = new.all_running_time, new.start_time
    if (
        old.all_running_time
        or ConditionType.RESTARTING in old.conditions.holding
        or done is None
        or begun is None
    ):
        return None
    begin, first = unix(begun), job.rules.named["created_first"] if job.rules else ()
    placed = [unix(pod.scheduled_at) for pod in pods if pod.role in first and pod.scheduled_at]
    return _Started(max(unix(done) - begin, 0.0), max(max(placed) - begin, 0.0) if placed else None)


def _recovered(old: JobStatus, new: JobStatus) -> float | None:
    """Return the seconds from the last loss until all pods ran again; None if `new` reports no recovery."""
    lost, running = restarted(old), new.conditions.by_type.get(ConditionType.RUNNING)
    if lost is None or running is None:
        return None
    if (
        ConditionType.RESTARTING not in old.conditions.holding
        or ConditionType.RUNNING not in new.conditions.holding
    ):
        return None
    return max(unix(running.last_transition_time) - unix(lost), 0.0)


def _failures(old: JobStatus, new: JobStatus) -> tuple[str, int]:
    """Return the class and the number of the failures that `new` counts and `old` does not."""
    before, after = (each.restarts.of_training + (each.restarts.evaluator or 0) for each in (old, new))
    ended = (
        ConditionType.FAILED in new.conditions.holding and ConditionType.FAILED not in old.conditions.holding
    )
    kind = new.failure.failure_class if new.failure else None
    return kind if kind in FAILURE_CLASSES else "Other", max(after - before, 0) + ended
