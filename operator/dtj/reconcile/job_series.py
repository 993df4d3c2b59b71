"""The figures of each job as Prometheus series, and of the accelerators that jobs hold.

A scrape computes the series from the figures of the last pass over each job, so no series outlives its job.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dtj.api.job import Job
from dtj.api.pod_template import is_accelerator
from dtj.api.spec import Accelerator
from dtj.api.status import ConditionType, JobStatus, Phase, ProgressStatus
from dtj.api.stored_job import AnyJob
from dtj.reconcile.view import Key
from dtj.status.observed import Observed, Utilisation
from dtj.status.pods import PodView
from dtj.status.times import read_time

_Whose = tuple[str, str]
"""The namespace and the strategy of a job."""
_WHOSE = ("job_namespace", "strategy")
_JOB = ("job_namespace", "job_name", "strategy")
MOST_WITHOUT_JOBS = 1_000
"""The number of pairs of namespace and strategy whose counters are kept without a job. Old pairs are dropped."""


@dataclass(frozen=True)
class JobFigures:
    """The metrics of one job while the job exists."""

    namespace: str
    name: str
    strategy: str
    phase: Phase
    finished: bool
    progress: ProgressStatus | None
    """The progress of a running job; None for any other job."""
    utilisation: Utilisation | None
    """The processors, memory and GPUs that the pod of rank 0 or the chief of a running job uses."""
    checkpoint: float | None
    """Unix time at which the newest checkpoint was complete; None unless the job runs."""
    unsaved_since: float | None
    """Unix time from which on training would be lost with the pods: the time of the newest checkpoint, or the time at
    which all pods began to run if that is later. None unless the job runs and has a bucket."""
    stalled: bool | None
    """Whether the running job is stalled; None without runPolicy.stallTimeoutSeconds or when the job does not run."""
    gpus: int
    """Number of accelerators of the pods that have a node and have not ended."""
    idle_gpus: int
    """Number of these accelerators that do not train: all while the training waits, restarts, is stalled or has
    ended; otherwise those of pods that do not run."""


def strategy_label(job: AnyJob) -> str:
    """Return the value of the metrics' label `strategy` for a job."""
    return job.rules.name if job.rules else "unknown"


def job_figures(job: AnyJob, status: JobStatus, observed: Observed) -> JobFigures:
    """Return the figures of a job."""
    phase = status.phase or Phase.PENDING
    runs = phase is Phase.RUNNING
    artifacts = status.artifacts if runs else None
    known = artifacts.checkpoint.time if artifacts and artifacts.checkpoint else None
    checkpoint = unix(known) if known else None
    running = status.conditions.by_type.get(ConditionType.RUNNING)
    at_risk = artifacts is not None and artifacts.uri is not None and running is not None
    stalled = ConditionType.STALLED in status.conditions.holding
    watched = runs and job.run_policy.stall_timeout_seconds is not None
    # In a strategy whose replicas restart alone, the training continues while a replica restarts.
    partly = job.rules is not None and job.rules.restarts_alone and phase is Phase.RESTARTING
    trains = not stalled and (
        ConditionType.RUNNING in status.conditions.holding or (partly and status.all_running_time is not None)
    )
    gpus, of_running = _gpus(job, observed.pods)
    return JobFigures(
        namespace=job.namespace,
        name=job.name,
        strategy=strategy_label(job),
        phase=phase,
        finished=status.conditions.finished,
        progress=status.progress if runs else None,
        utilisation=observed.utilisation if runs else None,
        checkpoint=checkpoint,
        unsaved_since=max(checkpoint or 0.0, unix(running.last_transition_time))
        if at_risk and running
        else None,
        stalled=stalled if watched else None,
        gpus=gpus,
        idle_gpus=gpus - of_running if trains else gpus,
    )


def _gpus(job: AnyJob, pods: Sequence[PodView]) -> tuple[int, int]:
    """Return the number of accelerators of the pods that have a node, and of those among them that run."""
    resource = (job.spec.accelerator if isinstance(job, Job) else Accelerator()).resource_name
    held = running = 0
    for pod in pods:
        if pod.devices and pod.has_node:
            count = sum(count for name, count in pod.devices if is_accelerator(name, resource))
            held += count
            running += count * pod.running
    return held, running


def unix(time: str) -> float:
    """Return a written time in Unix seconds."""
    return read_time(time).timestamp()


@dataclass(frozen=True)
class _Tracked:
    figures: JobFigures
    since: float
    """The time of the figures, in seconds of the clock."""


class JobSeries(Collector):
    """Keeps the figures of jobs by key. Prometheus scrapes from another thread."""

    def __init__(
        self, clock: Callable[[], float], ended: Callable[[str, str], None] = lambda *_: None
    ) -> None:
        """clock: returns seconds of a monotonic clock.
        ended: called with a namespace and a strategy whose counters are dropped.
        """
        self._clock = clock
        self._ended = ended
        self._lock = threading.Lock()
        self._jobs: dict[Key, _Tracked] = {}
        # Seconds for which jobs held accelerators, and for which the accelerators were idle, up to `since` of each
        # job.
        self._held: dict[_Whose, float] = {}
        self._idle: dict[_Whose, float] = {}
        self._number: Counter[_Whose] = Counter()
        self._without_jobs: dict[_Whose, None] = {}
        """The pairs of namespace and strategy that have no job any more, the newest last."""

    def keep(self, key: Key, figures: JobFigures) -> bool:
        """Replace the figures of a job. Return whether the job is the first of its namespace and strategy."""
        whose = figures.namespace, figures.strategy
        with self._lock:
            self._take_out(key)
            self._jobs[key] = _Tracked(figures, self._clock())
            self._number[whose] += 1
            self._without_jobs.pop(whose, None)
            if whose in self._held:
                return False
            self._held[whose] = self._idle[whose] = 0.0
            return True

    def forget(self, key: Key) -> None:
        """Drop a job that was deleted, or that another controller carries out."""
        with self._lock:
            whose = self._take_out(key)
            if whose is None or self._number[whose]:
                return
            self._without_jobs[whose] = None
            if len(self._without_jobs) > MOST_WITHOUT_JOBS:
                oldest = next(iter(self._without_jobs))
                del self._without_jobs[oldest], self._held[oldest], self._idle[oldest]
                self._ended(*oldest)

    def _take_out(self, key: Key) -> _Whose | None:
        self._settle(key)
        tracked = self._jobs.pop(key, None)
        if tracked is None:
            return None
        whose = tracked.figures.namespace, tracked.figures.strategy
        self._number[whose] -= 1
        if not self._number[whose]:
            del self._number[whose]
        return whose

    def _settle(self, key: Key) -> None:
        """Add the accelerator seconds of a job up to now."""
        tracked = self._jobs.get(key)
        if tracked is None or not tracked.figures.gpus:
            return
        whose = tracked.figures.namespace, tracked.figures.strategy
        seconds = max(self._clock() - tracked.since, 0.0)
        self._held[whose] += tracked.figures.gpus * seconds
        self._idle[whose] += tracked.figures.idle_gpus * seconds

    def collect(self) -> Iterator[Metric]:
        """Yield all series as of now."""
        with self._lock:
            for key, tracked in self._jobs.items():
                self._settle(key)
                self._jobs[key] = _Tracked(tracked.figures, self._clock())
            held, idle = dict(self._held), dict(self._idle)
            jobs = [tracked.figures for tracked in self._jobs.values()]
        yield _phases(jobs)
        yield _counter(
            "dtj_gpu_held_seconds",
            "Seconds of accelerators that pods of jobs held: from a pod's scheduling to its end.",
            held,
        )
        yield _counter(
            "dtj_gpu_idle_seconds",
            "Seconds of accelerators that pods held without training: the job was not running, was Stalled, or "
            "the pod was not running.",
            idle,
        )
        yield from _each(jobs)


def _phases(jobs: Iterable[JobFigures]) -> Metric:
    counts: Counter[tuple[str, str, Phase]] = Counter(
        (job.namespace, job.strategy, job.phase) for job in jobs
    )
    family = GaugeMetricFamily("dtj_jobs", "Jobs that exist, by phase.", labels=[*_WHOSE, "phase"])
    for whose in sorted({(namespace, strategy) for namespace, strategy, _ in counts}):
        for phase in Phase:
            family.add_metric([*whose, phase.value], counts[*whose, phase])
    return family


def _counter(name: str, text: str, totals: dict[_Whose, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=_WHOSE)
    for whose, seconds in sorted(totals.items()):
        family.add_metric(whose, seconds)
    return family


def _each(jobs: Iterable[JobFigures]) -> Iterator[Metric]:
    """Yield the series of each job that has not ended, or still holds accelerators."""
    phase = GaugeMetricFamily(
        "dtj_job_phase", "1, for the phase of a job that has not ended.", labels=[*_JOB, "phase"]
    )
    families: dict[str, GaugeMetricFamily] = {
        name: GaugeMetricFamily(name, text, labels=_JOB)
        for name, text in (
            ("dtj_job_steps", "Optimizer steps done, of a running job; the number falls after a restart."),
            ("dtj_job_planned_steps", "Optimizer steps in all, of a running job."),
            ("dtj_job_examples_per_second", "Current examples per second over all ranks, of a running job."),
            (
                "dtj_job_checkpoint_timestamp_seconds",
                "When the newest complete checkpoint of a running job was uploaded, in Unix time.",
            ),
            (
                "dtj_job_unsaved_timestamp_seconds",
                "Unix time from which on the training of a running job with a bucket is in no checkpoint: the time "
                "of the newest checkpoint, or the later time at which all pods began to run.",
            ),
            (
                "dtj_job_stalled",
                "1 while a running job is stalled, else 0; only with runPolicy.stallTimeoutSeconds.",
            ),
            ("dtj_job_gpus", "Accelerators that pods of a job hold."),
            ("dtj_job_idle_gpus", "Accelerators that pods of a job hold and that do not train."),
            (
                "dtj_job_cpu_cores",
                "Processors that the pod of rank 0 or the chief of a running job uses.",
            ),
            (
                "dtj_job_memory_bytes",
                "Memory that the pod of rank 0 or the chief of a running job uses.",
            ),
            (
                "dtj_job_gpu_utilisation_ratio",
                "How busy the GPUs of the pod of rank 0 or the chief of a running job are, on average: 0 to 1.",
            ),
        )
    }
    for job in jobs:
        if job.finished and not job.gpus:
            continue
        labels = [job.namespace, job.name, job.strategy]
        if not job.finished:
            phase.add_metric([*labels, job.phase.value], 1)
        for family, value in zip(families.values(), _values(job), strict=True):
            if value is not None:
                family.add_metric(labels, value)
    yield phase
    yield from families.values()


def _values(job: JobFigures) -> tuple[float | None, ...]:
    progress, utilisation = job.progress, job.utilisation
    return (
        progress.step if progress else None,
        progress.total_steps if progress else None,
        progress.examples_per_second if progress else None,
        job.checkpoint,
        job.unsaved_since,
        job.stalled,
        job.gpus,
        job.idle_gpus,
        utilisation.cpu_cores if utilisation else None,
        utilisation.memory_bytes if utilisation else None,
        utilisation.gpu_utilisation if utilisation else None,
    )
