"""The inputs of the status of a job: the expectations of its plan and the observed state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dtj.api.job import Fault
from dtj.api.reasons import Reason
from dtj.api.scheduling import Gang
from dtj.api.status import ArtifactsStatus, PodCheckpointStatus, ProgressStatus
from dtj.status.mpijob import MpiJob
from dtj.status.pods import PodView
from dtj.status.progress_report import Utilisation

GATED = "SchedulingGated"
"""Reason of the condition PodScheduled while a scheduling gate holds the pod."""

Bottleneck = tuple[str, str]
"""Reason and message of the condition Bottleneck."""


@dataclass(frozen=True)
class Expected:
    """The part of an attempt's plan on which the status depends."""

    roles: Mapping[str, Sequence[str]]
    """Names of the pods, by role."""
    stages: Sequence[Sequence[str]]
    """Names of the pods, by stage."""
    decisive: Sequence[str]
    """Names of the pods whose success is the job's success."""
    reporter: str
    """Name of the pod that reports the progress of the training."""
    artifacts_uri: str | None
    attempts: Mapping[str, int]
    """By pod name: the attempt to which the pod must belong."""
    restarts_with: Mapping[str, frozenset[str]] | None = None
    """By pod name: the pods that restart when that pod is lost. None: every loss restarts all pods."""
    holds_state: frozenset[str] = frozenset()
    """Names of the pods that hold the state of the training and must not end before the training ends."""
    evaluator: str | None = None
    """Name of the pod that measures checkpoints, if any. The training can continue without this pod."""
    evaluator_timeout: float = 0.0
    """Seconds that the evaluator may run after the end of the training."""
    gang: Gang = Gang.NONE
    """The gang scheduler, which places all pods together or none."""
    queue: str | None = None
    """Name of the gang scheduler's queue."""
    workload: str | None = None
    """Name of Kueue's Workload of the attempt, if the pods are queued as one group."""
    all_or_nothing: bool = False
    """Whether a scheduler admits the pods as one group. The operator recreates no single member of a group."""
    next_stage_on_running: bool = False
    """Whether the containers of a stage wait for the earlier stages themselves: see `Plan`."""
    planned: bool = True
    """Whether a plan asks for these pods; if False, the expectation stems from the stored status."""
    handed_over: bool = False
    """Whether mpi-operator creates the pods."""
    created_last: frozenset[str] = frozenset()
    """Names of the pods that are created last. When all of these exist, every pod of the attempt has been created."""

    @cached_property
    def needed(self) -> frozenset[str]:
        """Return the names of the pods that must run for the job to run: all but the evaluator."""
        return frozenset(self.attempts) - {self.evaluator}

    @cached_property
    def decides(self) -> frozenset[str]:
        """Names of the decisive pods."""
        return frozenset(self.decisive)

    @cached_property
    def peers(self) -> frozenset[str]:
        """Names of the pods whose program also fails when the program of another of these pods fails.

        Where no pod holds the state for the others, the decisive pod and those that restart with it train in step.
        """
        if self.restarts_with is None or self.holds_state or not self.decisive:
            return self.decides
        return self.restarts_with.get(self.decisive[0], self.decides)

    @cached_property
    def tells_the_end(self) -> Sequence[str]:
        """Names of the pods whose termination message has the last progress and artifacts of the training."""
        return [self.reporter] if self.reporter in self.decides else self.decisive

    @cached_property
    def first(self) -> frozenset[str]:
        """Return the names of the pods of the first stage."""
        return frozenset(self.stages[0])


@dataclass(frozen=True)
class Observed:
    """The observed state of a job."""

    pods: Sequence[PodView] = ()
    refusal: tuple[str, str] | None = None
    """Reason and message of the last refusal by the API server to create an object, until a creation succeeds."""
    invalid: Sequence[Fault] = ()
    """The faults that the API server found in an object of the plan."""
    progress: ProgressStatus | None = None
    artifacts: ArtifactsStatus | None = None
    checkpoint_held_up: str | None = None
    """What holds up the next checkpoint; empty: nothing; None: not reported."""
    artifacts_incomplete: str | None = None
    """The files that the pod of rank 0 has not uploaded or not restored; empty: none; None: not reported."""
    bottleneck: Bottleneck | None = None
    """The bottleneck of the training; reported together with `progress`."""
    evaluation: ProgressStatus | None = None
    """The last measurement that the evaluator reported."""
    answers: bool | None = None
    """Whether the pod of rank 0 answered the last request; None before the first request."""
    program_ended: bool = False
    """Whether the pod of rank 0 reported the end of the training. Only export and uploads may then be left."""
    utilisation: Utilisation | None = None
    """What the pod of rank 0 uses."""
    pod_checkpoint: PodCheckpointStatus | None = None
    """The newest checkpoint of the reporting pod, if the bucket does not have it."""
    mpijob: MpiJob | None = None
    """The MPIJob to which the job is delegated."""


# Reasons of the kubelet for an image that it can't provide.
_IMAGE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)


def obstacle(pods: Sequence[PodView], refusal: tuple[str, str] | None) -> tuple[str, str] | None:
    """Return the reason and message of what keeps the pods from running; None if nothing does."""
    if refusal is not None:
        return refusal
    pod = hindered(pods)
    if pod is None or pod.waiting is None:
        return None
    reason, message = pod.waiting
    what = f"{pod.name}: {message}" if message else f"{pod.name}: {reason}"
    if reason in _IMAGE:
        return Reason.IMAGE_PULL, f"the image can't be pulled: {what}"
    if reason == Reason.UNSCHEDULABLE:
        return Reason.UNSCHEDULABLE, f"no node takes {what}"
    return reason, what


def hindered(pods: Sequence[PodView]) -> PodView | None:
    """Return the first pod, by role and index, that can't run. Pods that only a scheduling gate holds come last."""
    return min(
        (pod for pod in pods if pod.waiting is not None),
        key=lambda pod: (is_gated(pod), pod.role, pod.index),
        default=None,
    )


def is_gated(pod: PodView) -> bool:
    """Return whether a scheduling gate, such as Kueue's, holds the pod."""
    return pod.waiting is not None and pod.waiting[0] == GATED
