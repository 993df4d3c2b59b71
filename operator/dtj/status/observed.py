"""The observed state by which a job is evaluated: reports of its pods, its MPIJob, and refusals. Data only.

`reconcile.reconciler` fills an `Observed` at the beginning of a pass. The views of pods are in `pods`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dtj.api.base import ApiModel
from dtj.api.identity import LABEL_ATTEMPT
from dtj.api.job import Fault
from dtj.api.reasons import Reason
from dtj.api.reported import MOST_COUNTED, Measured, number, take, text
from dtj.api.status import ArtifactsStatus, PodCheckpointStatus, ProgressStatus
from dtj.status.failure import read_failure
from dtj.status.pods import PodSet, PodView
from dtj.status.times import seconds_since
from dtj_trainer.contract import Termination

# The answer of a pod to GET /progress (dtj_trainer.contract.Report), reduced to the values that the status uses.

_BOTTLENECKS = {"ParameterServers": Reason.PARAMETER_SERVERS_SLOW, "Worker": Reason.STRAGGLING_WORKER}
"""Reason of the condition Bottleneck, by kind of the bottleneck in a report."""
_BOTTLENECK_LENGTH = 1024


class Utilisation(ApiModel):
    """The resources that a pod uses at present. They change in each report, so only the metrics have them, not the
    status.
    """

    cpu_cores: Measured = None
    """Processors in use."""
    memory_bytes: Measured = None
    gpu_utilisation: Measured = None
    """The average of the pod's GPUs, 0 to 1."""


@dataclass(frozen=True)
class InPlace:
    """The restarts in place since the pods were made, as reported by a pod."""

    count: int
    failure: Termination
    """The cause of the last restart; empty if the pod reports no cause."""


def read_in_place(said: Any) -> tuple[InPlace | None, int]:
    """Return a pod's report of restarts in place, and the number of values that were dropped."""
    if said is None:
        return None, 0
    count = number(said.get("count"), 0, MOST_COUNTED) if isinstance(said, Mapping) else None
    failure = read_failure(said.get("failure") or {}) if count is not None else None
    if count is None or failure is None:
        return None, 1
    return InPlace(count, failure), 0


@dataclass(frozen=True)
class ProgressReport:
    """The values of a pod's answer to GET /progress."""

    progress: ProgressStatus | None = None
    artifacts: ArtifactsStatus | None = None
    bottleneck: tuple[str, str] | None = None
    """Reason and message, from the report's progress."""
    checkpoint_held_up: str | None = None
    """What holds up the next checkpoint; empty: nothing; None: the pod reports nothing about checkpoints."""
    artifacts_incomplete: str | None = None
    """The files that are not uploaded or not restored, with the reasons; empty: none; None: not reported."""
    program_ended: bool = False
    """Whether the training is over: the pod's programs have ended (phases), or export the model (progress)."""
    utilisation: Utilisation | None = None
    pod_checkpoint: PodCheckpointStatus | None = None
    """The newest checkpoint on the pod's disk; None if the bucket has it."""
    in_place: InPlace | None = None
    """The restarts in place since the pod was made; None before the first."""


def read_report(body: bytes | str) -> tuple[ProgressReport | None, int]:
    """Return the report, or None if the answer is no report, and the number of dropped values."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None, 1
    if not isinstance(answer, dict):
        return None, 1
    progress, bad_progress = take(ProgressStatus, answer.get("progress"))
    artifacts, bad_artifacts = take(ArtifactsStatus, answer.get("artifacts"))
    bottleneck, bad_bottleneck = _bottleneck(answer.get("progress"))
    utilisation, bad_utilisation = take(Utilisation, answer.get("utilisation"))
    phases = answer.get("phases")
    ended = (isinstance(phases, dict) and "programEnded" in phases) or _exporting(answer.get("progress"))
    checkpoint, bad_checkpoint = _only_in_pod(answer.get("checkpoint"))
    in_place, bad_restarts = read_in_place(answer.get("restarts"))
    dropped = bad_progress + bad_artifacts + bad_bottleneck + bad_utilisation + bad_checkpoint + bad_restarts
    held_up, incomplete = _said(answer, "heldUp"), artifacts_incomplete(answer)
    report = ProgressReport(
        progress, artifacts, bottleneck, held_up, incomplete, ended, utilisation, checkpoint, in_place
    )
    return report, dropped


def _only_in_pod(checkpoint: Any) -> tuple[PodCheckpointStatus | None, int]:
    if isinstance(checkpoint, Mapping) and checkpoint.get("uploaded") is not False:
        return None, 0
    return take(PodCheckpointStatus, checkpoint)


def artifacts_incomplete(report: Mapping[str, Any]) -> str | None:
    """Return which files a pod has not uploaded or not restored, and why; empty: none; None: not reported."""
    refused, left_out = _said(report, "notUploaded"), _said(report, "notRestored")
    if refused is None or left_out is None:
        return None
    said = {"files are not uploaded": refused, "files are not restored": left_out}
    return "; ".join(f"{what}: {why}" for what, why in said.items() if why)


def _said(report: Mapping[str, Any], name: str) -> str | None:
    artifacts = report.get("artifacts")
    if not isinstance(artifacts, Mapping):
        return None
    return text(artifacts.get(name, ""), _BOTTLENECK_LENGTH)


def _exporting(progress: Any) -> bool:
    return isinstance(progress, Mapping) and progress.get("exporting") is True


def _bottleneck(progress: Any) -> tuple[tuple[str, str] | None, int]:
    bottleneck = progress.get("bottleneck") if isinstance(progress, Mapping) else None
    if bottleneck is None:
        return None, 0
    kind, message = (
        (bottleneck.get("kind"), bottleneck.get("message"))
        if isinstance(bottleneck, Mapping)
        else (None, None)
    )
    reason, sentence = _BOTTLENECKS.get(str(kind)), text(message, _BOTTLENECK_LENGTH)
    return ((reason, sentence), 0) if reason and sentence else (None, 1)


# The state of the MPIJob to which a job is delegated.
#
# The pods are the better source. `Running` of an MPIJob stays True when a worker dies, an MPIJob that is `Failed`
# after an eviction may succeed later, and the status of an MPIJob has no exit codes. The operator therefore uses the
# MPIJob only for what pods do not show: a success or a failure whose pods are gone, a queue that suspends the MPIJob,
# and an MPIJob that no controller handles.

TAKE_UP_SECONDS = 30.0
"""Seconds without a condition after which the operator assumes that no mpi-operator handles the MPIJob."""


@dataclass(frozen=True)
class MpiCondition:
    """A condition of an MPIJob that is True."""

    reason: str
    message: str
    time: str | None


@dataclass(frozen=True)
class MpiJob:
    """The fields of an MPIJob on which the status of a job depends."""

    name: str
    attempt: int
    created: str | None
    deleting: bool
    suspended: bool
    """Whether runPolicy.suspend is true. Kueue or a user sets the field, never the operator."""
    taken_up: bool
    """Whether mpi-operator has set a condition."""
    completed: bool
    """Whether the MPIJob has a completionTime. Before that, mpi-operator deletes no pods, and a failed MPIJob may
    still succeed."""
    succeeded: MpiCondition | None
    failed: MpiCondition | None


def view_mpijob(manifest: Mapping[str, Any]) -> MpiJob:
    """Read the manifest of an MPIJob of kubeflow.org/v2beta1."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    conditions = status.get("conditions") or []
    holding = {c["type"]: c for c in conditions if c.get("status") == "True"}
    return MpiJob(
        name=metadata["name"],
        attempt=int((metadata.get("labels") or {}).get(LABEL_ATTEMPT, 0)),
        created=metadata.get("creationTimestamp"),
        deleting=metadata.get("deletionTimestamp") is not None,
        suspended=bool((manifest["spec"].get("runPolicy") or {}).get("suspend")),
        taken_up=bool(conditions),
        completed=status.get("completionTime") is not None and bool({"Succeeded", "Failed"} & holding.keys()),
        succeeded=_condition(holding.get("Succeeded")),
        failed=_condition(holding.get("Failed")),
    )


def _condition(condition: Mapping[str, Any] | None) -> MpiCondition | None:
    if condition is None:
        return None
    # mpi-operator appends "/" and the reason of a pod, which may be empty: `BackoffLimitExceeded/`.
    reason = str(condition.get("reason") or "Failed").rstrip("/")
    return MpiCondition(reason, str(condition.get("message") or ""), condition.get("lastTransitionTime"))


def not_taken_up(mpijob: MpiJob | None, now: datetime) -> tuple[str, str] | None:
    """Return the reason and message for an MPIJob that no controller handles; None for any other MPIJob."""
    if mpijob is None or mpijob.taken_up or mpijob.deleting or mpijob.created is None:
        return None
    if seconds_since(mpijob.created, now) < TAKE_UP_SECONDS:
        return None
    return Reason.MPIJOB_NOT_TAKEN_UP, (
        f"MPIJob {mpijob.name} has no condition {TAKE_UP_SECONDS:.0f} s after its creation: check that mpi-operator "
        "runs and watches this namespace; mpi-operator reports a fault of an MPIJob only in the events of the MPIJob"
    )


GATED = "SchedulingGated"
"""Reason of the condition PodScheduled while a scheduling gate holds the pod."""

Bottleneck = tuple[str, str]
"""Reason and message of the condition Bottleneck."""


@dataclass(frozen=True)
class Observed:
    """The observed state of a job."""

    pods: PodSet = field(default_factory=PodSet)
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
    """The processors, memory and GPUs that the pod of rank 0 uses."""
    pod_checkpoint: PodCheckpointStatus | None = None
    """The newest checkpoint of the reporting pod, if the bucket does not have it."""
    in_place: InPlace | None = None
    """The restarts in place that the reporting pod has reported; None: no restart."""
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
