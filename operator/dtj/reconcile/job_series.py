"""What Prometheus is told of each job that is there, and of the accelerators that jobs hold.

It is put together when it is asked for, of what the last pass over each job left: no series outlives its job.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dtj.api.status import Phase
from dtj.reconcile.view import Key
from dtj.status.figures import JobFigures

_Whose = tuple[str, str]
"""Namespace and strategy."""
_WHOSE = ("job_namespace", "strategy")
_JOB = ("job_namespace", "job_name", "strategy")


@dataclass(frozen=True)
class _Known:
    figures: JobFigures
    since: float
    """By the clock."""


class JobSeries(Collector):
    """Jobs by key. Prometheus asks from a thread of its own."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[Key, _Known] = {}
        # Seconds that accelerators were held, and idle, until what is in _jobs.
        self._held: dict[_Whose, float] = {}
        self._idle: dict[_Whose, float] = {}

    def keep(self, key: Key, figures: JobFigures) -> bool:
        """Tell this of a job from now on. Whether it is the first of its namespace and strategy ever."""
        whose = figures.namespace, figures.strategy
        with self._lock:
            self._settle(key)
            self._jobs[key] = _Known(figures, self._clock())
            if whose in self._held:
                return False
            self._held[whose] = self._idle[whose] = 0.0
            return True

    def forget(self, key: Key) -> None:
        """The job is gone, or another controller's."""
        with self._lock:
            self._settle(key)
            self._jobs.pop(key, None)

    def _settle(self, key: Key) -> None:
        """Count what a job has held so far."""
        known = self._jobs.get(key)
        if known is None or not known.figures.gpus:
            return
        whose = known.figures.namespace, known.figures.strategy
        seconds = max(self._clock() - known.since, 0.0)
        self._held[whose] += known.figures.gpus * seconds
        self._idle[whose] += known.figures.idle_gpus * seconds

    def collect(self) -> Iterator[Metric]:
        """Everything that is told now."""
        with self._lock:
            for key, known in self._jobs.items():
                self._settle(key)
                self._jobs[key] = _Known(known.figures, self._clock())
            held, idle = dict(self._held), dict(self._idle)
            jobs = [known.figures for known in self._jobs.values()]
        yield _phases(jobs)
        yield _counter(
            "dtj_gpu_held_seconds",
            "Seconds of accelerators that pods of jobs held: from a pod's scheduling to its end.",
            held,
        )
        yield _counter(
            "dtj_gpu_idle_seconds",
            "Seconds of accelerators that pods held without training: the job did not run yet or again, or was "
            "Stalled, or the pod did not run.",
            idle,
        )
        yield from _each(jobs)


def _phases(jobs: Iterable[JobFigures]) -> Metric:
    counts: Counter[tuple[str, str, Phase]] = Counter(
        (job.namespace, job.strategy, job.phase) for job in jobs
    )
    family = GaugeMetricFamily("dtj_jobs", "Jobs that are there, by phase.", labels=[*_WHOSE, "phase"])
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
    """What is told of each job that has not ended."""
    phase = GaugeMetricFamily(
        "dtj_job_phase", "1, for the phase of a job that has not ended.", labels=[*_JOB, "phase"]
    )
    told: dict[str, GaugeMetricFamily] = {
        name: GaugeMetricFamily(name, text, labels=_JOB)
        for name, text in (
            ("dtj_job_steps", "Optimizer steps done, of a running job; less again after a restart."),
            ("dtj_job_planned_steps", "Optimizer steps in all, of a running job."),
            ("dtj_job_examples_per_second", "Examples a second over all ranks lately, of a running job."),
            (
                "dtj_job_checkpoint_timestamp_seconds",
                "When the newest complete checkpoint of a running job was uploaded, in Unix time.",
            ),
            (
                "dtj_job_unsaved_timestamp_seconds",
                "From when on training of a running job with a bucket is in no checkpoint, in Unix time: the newest "
                "checkpoint, or the time from which all pods run where that is later.",
            ),
            (
                "dtj_job_stalled",
                "1 while a running job stands still, else 0; only with runPolicy.stallTimeoutSeconds.",
            ),
            ("dtj_job_gpus", "Accelerators that pods of a job hold."),
            ("dtj_job_idle_gpus", "Those of dtj_job_gpus that do not train."),
        )
    }
    for job in jobs:
        if job.finished and not job.gpus:
            continue
        labels = [job.namespace, job.name, job.strategy]
        if not job.finished:
            phase.add_metric([*labels, job.phase.value], 1)
        for family, value in zip(told.values(), _values(job), strict=True):
            if value is not None:
                family.add_metric(labels, value)
    yield phase
    yield from told.values()


def _values(job: JobFigures) -> tuple[float | None, ...]:
    progress = job.progress
    return (
        progress.step if progress else None,
        progress.total_steps if progress else None,
        progress.examples_per_second if progress else None,
        job.checkpoint,
        job.unsaved_since,
        job.stalled,
        job.gpus,
        job.idle_gpus,
    )
