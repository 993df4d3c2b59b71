"""The answer of a pod on /progress (dtj_trainer.contract.Report), reduced to the values that the status uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtj.api.base import ApiModel
from dtj.api.reasons import Reason
from dtj.api.reported import Measured, take, text
from dtj.api.status import ArtifactsStatus, PodCheckpointStatus, ProgressStatus

_BOTTLENECKS = {"ParameterServers": Reason.PARAMETER_SERVERS_SLOW, "Worker": Reason.STRAGGLING_WORKER}
"""Reason of the condition Bottleneck, by kind of the bottleneck in a report."""
_BOTTLENECK_LENGTH = 1024


class Utilisation(ApiModel):
    """What a pod uses lately. It is in no status, because it always changes; the metrics have it."""

    cpu_cores: Measured = None
    """Processors in use."""
    memory_bytes: Measured = None
    gpu_utilisation: Measured = None
    """The average of the pod's GPUs, 0 to 1."""


@dataclass(frozen=True)
class Report:
    """The values of an answer."""

    progress: ProgressStatus | None = None
    artifacts: ArtifactsStatus | None = None
    bottleneck: tuple[str, str] | None = None
    """Reason and message, from the report's progress."""
    checkpoint_held_up: str | None = None
    """What holds up the next checkpoint; empty: nothing; None: the pod does not say."""
    artifacts_incomplete: str | None = None
    """The files that are not uploaded or not restored, with the reasons; empty: none; None: the pod does not say."""
    program_ended: bool = False
    """Whether the training is over: the pod's programs have ended (phases), or export the model (progress)."""
    utilisation: Utilisation | None = None
    pod_checkpoint: PodCheckpointStatus | None = None
    """The newest checkpoint on the pod's disk; None if the bucket has it."""


def read_report(body: bytes | str) -> tuple[Report | None, int]:
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
    dropped = bad_progress + bad_artifacts + bad_bottleneck + bad_utilisation + bad_checkpoint
    held_up, incomplete = _said(answer, "heldUp"), artifacts_incomplete(answer)
    report = Report(progress, artifacts, bottleneck, held_up, incomplete, ended, utilisation, checkpoint)
    return report, dropped


def _only_in_pod(checkpoint: Any) -> tuple[PodCheckpointStatus | None, int]:
    if isinstance(checkpoint, Mapping) and checkpoint.get("uploaded") is not False:
        return None, 0
    return take(PodCheckpointStatus, checkpoint)


def artifacts_incomplete(report: Mapping[str, Any]) -> str | None:
    """Return which files a pod has not uploaded or not restored, and why; empty: none; None: the pod does not say."""
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
