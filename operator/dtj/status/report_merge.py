"""Combine the states and the reports of the pods for the status."""

from __future__ import annotations

from collections.abc import Mapping

from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.status.draft import Draft
from dtj.status.evaluator import measured
from dtj.status.observed import Expected, Observed
from dtj.status.pods import PodView
from dtj.status.termination import read_termination, reported


def merge_reports(draft: Draft, expected: Expected, observed: Observed, named: Mapping[str, PodView]) -> None:
    """Store the reports of running pods and the termination messages of ended pods.

    A termination message names checkpoints that are newer than the last report. Without those,
    the status could name a checkpoint that was deleted.
    """
    old = draft.job.status
    evaluation = measured(named.get(expected.evaluator or ""), observed.evaluation)
    ends = [named[name].exit for name in expected.decisive if name in named]
    said = [reported(read_termination(end)) for end in ends if end is not None]
    progress, artifacts = old.progress, old.artifacts
    for new in [(observed.progress, observed.artifacts), *said]:
        progress = _progress(expected, progress, new[0], evaluation)
        artifacts = _artifacts(expected, artifacts, new[1])
    draft.progress, draft.artifacts = progress, artifacts


def _progress(
    expected: Expected,
    old: ProgressStatus | None,
    new: ProgressStatus | None,
    evaluation: ProgressStatus | None,
) -> ProgressStatus | None:
    """What rank 0 reports; where there is an evaluator, the accuracy is what that one measured last."""
    progress = new or old
    if expected.evaluator is None:
        return progress
    known = [
        each.accuracy for each in (evaluation, old, new) if each is not None and each.accuracy is not None
    ]
    return (progress or ProgressStatus()).model_copy(update={"accuracy": known[0]}) if known else progress


def _artifacts(
    expected: Expected, old: ArtifactsStatus | None, new: ArtifactsStatus | None
) -> ArtifactsStatus | None:
    """What was known of the bucket, with what is new."""
    if expected.artifacts_uri is None:
        return None
    known = {
        **(old.model_dump(exclude_none=True) if old else {}),
        **(new.model_dump(exclude_none=True) if new else {}),
    }
    return ArtifactsStatus.model_validate(known | {"uri": expected.artifacts_uri})
