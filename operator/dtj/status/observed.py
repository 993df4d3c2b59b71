"""The inputs of the status of a job: the expectations of its plan and the observed state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dtj.api.job import Fault
from dtj.api.reasons import Reason
from dtj.api.scheduling import Gang
from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.status.mpijob import MpiJob
from dtj.status.pods import PodView

GATED = "SchedulingGated"
"""Reason of the condition PodScheduled of a pod that a scheduling gate holds."""

Bottleneck = tuple[str, str]
"""Reason and message of the condition."""


@dataclass(frozen=True)
class Expected:
    """What the plan of an attempt asks for, as far as the status depends on it."""

    replicas: Mapping[str, int]
    """Pods by role."""
    stages: Sequence[Sequence[str]]
    """Names of the pods, by stage."""
    decisive: Sequence[str]
    """Names of the pods whose success is the job's."""
    reporter: str
    """Name of the pod that reports the progress of the training."""
    artifacts_uri: str | None
    attempts: Mapping[str, int]
    """In which attempt each pod is to be, by its name."""
    restarts_with: Mapping[str, frozenset[str]] | None = None
    """The pods that are started again when one is lost, by its name; None: all of them, whichever it is."""
    holds_state: frozenset[str] = frozenset()
    """Names of the pods that must not end before the training, because they hold its state."""
    evaluator: str | None = None
    """Name of the pod that measures checkpoints: the training goes on without it."""
    evaluator_timeout: float = 0.0
    """Seconds that it gets after the training's end."""
    gang: Gang = Gang.NONE
    """Who places the pods all together or not at all."""
    queue: str | None = None
    """In which queue."""
    workload: str | None = None
    """Name of Kueue's Workload of the attempt, where one group of pods is queued."""
    all_or_nothing: bool = False
    """A scheduler admits the pods as one group: no member is created again alone."""
    next_stage_on_running: bool = False
    """Whether the containers of the last stage wait for the stages before: see `Plan`."""
    planned: bool = True
    """Whether a plan asks for these pods; if False, the expectation stems from the stored status."""
    handed_over: bool = False
    """Whether mpi-operator creates the pods."""
    created_last: frozenset[str] = frozenset()
    """Names of the pods that are created last: while all of them exist, every pod of the attempt has been created."""

    @cached_property
    def needed(self) -> frozenset[str]:
        """Names of the pods without which the job does not run."""
        return frozenset(name for stage in self.stages for name in stage if name != self.evaluator)

    @cached_property
    def decides(self) -> frozenset[str]:
        """Names of the decisive pods."""
        return frozenset(self.decisive)

    @cached_property
    def tells_the_end(self) -> Sequence[str]:
        """Names of the pods whose termination message has the last progress and artifacts of the training."""
        return [self.reporter] if self.reporter in self.decides else self.decisive

    @cached_property
    def first(self) -> frozenset[str]:
        """Names of the pods of the first stage."""
        return frozenset(self.stages[0])


@dataclass(frozen=True)
class Observed:
    """The observed state of a job."""

    pods: Sequence[PodView] = ()
    refusal: tuple[str, str] | None = None
    """Reason and message of the API server's last refusal to make an object, while it lasts."""
    invalid: Sequence[Fault] = ()
    """What the API server found wrong with an object of the plan."""
    progress: ProgressStatus | None = None
    artifacts: ArtifactsStatus | None = None
    bottleneck: Bottleneck | None = None
    """The bottleneck of the training; reported together with `progress`."""
    evaluation: ProgressStatus | None = None
    """What the evaluator reports."""
    answers: bool | None = None
    """Whether the pod of rank 0 answered the last request; None before the first request."""
    program_ended: bool = False
    """Whether its program has ended, as it says: what is left is the upload."""
    mpijob: MpiJob | None = None
    """The MPIJob that the job was handed over as."""


# Reasons of the kubelet for an image that it does not get.
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
    """What keeps the pods from running, in words."""
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
    """The first pod, by role and index, that something keeps from running; those that only a gate holds come last."""
    return min(
        (pod for pod in pods if pod.waiting is not None),
        key=lambda pod: (is_gated(pod), pod.role, pod.index),
        default=None,
    )


def is_gated(pod: PodView) -> bool:
    """Whether a scheduling gate, such as Kueue's, holds the pod."""
    return pod.waiting is not None and pod.waiting[0] == GATED
