"""Detect a job with artifacts whose program succeeded and left neither a checkpoint nor a model."""

from __future__ import annotations

from collections.abc import Iterable

from dtj.api.status import ArtifactsStatus
from dtj.status.pods import Exit
from dtj.status.termination import read_termination, reported
from dtj_trainer.contract import ROOT

NOTHING_KEPT = f"the program left neither a checkpoint nor a model below {ROOT}"


def is_nothing_kept(ends: Iterable[Exit], artifacts: ArtifactsStatus | None) -> bool:
    """Return whether dtj-launch reported its uploads at the end and named neither a checkpoint nor a model.

    ends: the exits of the pods whose success is the job's success. artifacts: the known content of the bucket; None
    for a job without artifacts. The result is False for an image without dtj_trainer, which reports no uploads.
    """
    if artifacts is None or artifacts.checkpoint is not None or artifacts.model is not None:
        return False
    return any(reported(read_termination(end))[1] is not None for end in ends)
