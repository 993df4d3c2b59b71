"""What a pod answers on /progress (dtj_trainer.contract.Report), as far as the status shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtj.api.reasons import Reason
from dtj.api.reported import take, text
from dtj.api.status import ArtifactsStatus, ProgressStatus

_BOTTLENECKS = {"ParameterServers": Reason.PARAMETER_SERVERS_SLOW, "Worker": Reason.STRAGGLING_WORKER}
"""Kind of a bottleneck in a report -> reason of the condition."""
_BOTTLENECK_LENGTH = 1024


@dataclass(frozen=True)
class Report:
    """An answer."""

    progress: ProgressStatus | None = None
    artifacts: ArtifactsStatus | None = None
    bottleneck: tuple[str, str] | None = None
    """Reason and message, from the report's progress."""
    program_ended: bool = False
    """Whether the pod's programs have ended, from the report's phases."""


def read_report(body: bytes | str) -> tuple[Report | None, int]:
    """The report in an answer, None where the answer is none; and how many values were dropped."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None, 1
    if not isinstance(said, dict):
        return None, 1
    progress, bad_progress = take(ProgressStatus, said.get("progress"))
    artifacts, bad_artifacts = take(ArtifactsStatus, said.get("artifacts"))
    bottleneck, bad_bottleneck = _bottleneck(said.get("progress"))
    phases = said.get("phases")
    ended = isinstance(phases, dict) and "programEnded" in phases
    return Report(progress, artifacts, bottleneck, ended), bad_progress + bad_artifacts + bad_bottleneck


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
