"""The figures of a job for its metrics: progress, accelerators and start durations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dtj.api.job import Job
from dtj.api.pod_template import is_accelerator
from dtj.api.reasons import FAILURE_CLASSES
from dtj.api.spec import Accelerator
from dtj.api.status import ConditionType, JobStatus, Phase, ProgressStatus
from dtj.api.unreadable import AnyJob
from dtj.status.observed import Observed, Utilisation
from dtj.status.pods import PodView
from dtj.status.restart_policy import restarted
from dtj.status.times import read_time


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


@dataclass(frozen=True)
class Started:
    """The duration of a completed start or resumption of a job, in seconds."""

    running: float
    """Seconds until all pods ran."""
    queued: float | None
    """Seconds until the last worker or parameter server had a node; None if no pod has a scheduling time."""


def strategy_label(job: AnyJob) -> str:
    """Return the value of the metrics' label `strategy` for a job."""
    return job.rules.name if job.rules else "unknown"


def job_figures(job: AnyJob, status: JobStatus, observed: Observed) -> JobFigures:
    """Return the figures of a job."""
    phase = status.phase or Phase.PENDING
    runs = phase is Phase.RUNNING
    artifacts = status.artifacts if runs else None
    known = artifacts.checkpoint.time if artifacts and artifacts.checkpoint else None
    checkpoint = _unix(known) if known else None
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
        unsaved_since=max(checkpoint or 0.0, _unix(running.last_transition_time))
        if at_risk and running
        else None,
        stalled=stalled if watched else None,
        gpus=gpus,
        idle_gpus=gpus - of_running if trains else gpus,
    )


def started(job: AnyJob, old: JobStatus, new: JobStatus, pods: Sequence[PodView]) -> Started | None:
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
    begin, first = _unix(begun), job.rules.named["created_first"] if job.rules else ()
    placed = [_unix(pod.scheduled_at) for pod in pods if pod.role in first and pod.scheduled_at]
    return Started(max(_unix(done) - begin, 0.0), max(max(placed) - begin, 0.0) if placed else None)


def recovered(old: JobStatus, new: JobStatus) -> float | None:
    """Return the seconds from the last loss until all pods ran again; None if `new` reports no recovery."""
    lost, running = restarted(old), new.conditions.by_type.get(ConditionType.RUNNING)
    if lost is None or running is None:
        return None
    if (
        ConditionType.RESTARTING not in old.conditions.holding
        or ConditionType.RUNNING not in new.conditions.holding
    ):
        return None
    return max(_unix(running.last_transition_time) - _unix(lost), 0.0)


def failures(old: JobStatus, new: JobStatus) -> tuple[str, int]:
    """Return the class and the number of the failures that `new` counts and `old` does not."""
    before, after = (each.restarts.of_training + (each.restarts.evaluator or 0) for each in (old, new))
    ended = (
        ConditionType.FAILED in new.conditions.holding and ConditionType.FAILED not in old.conditions.holding
    )
    kind = new.failure.failure_class if new.failure else None
    return kind if kind in FAILURE_CLASSES else "Other", max(after - before, 0) + ended


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


def _unix(time: str) -> float:
    return read_time(time).timestamp()
