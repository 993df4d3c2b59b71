"""Merge the reports of the pods into the draft of the status: progress, artifacts, and what hinders the uploads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dtj.api.condition_types import ConditionType
from dtj.api.reasons import Reason
from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.status.draft import Draft
from dtj.status.evaluator import measured
from dtj.status.fruitless import has_new_checkpoint
from dtj.status.observed import Expected, Observed
from dtj.status.pods import PodView
from dtj.status.progress_report import artifacts_incomplete
from dtj.status.termination import read_termination, reported


@dataclass(frozen=True)
class _Reported:
    """A condition that holds while a pod reports a trouble. message: while the pod reports none."""

    kind: ConditionType
    holds: Reason
    holds_not: Reason
    message: str


_CHECKPOINT_DELAYED = _Reported(
    ConditionType.CHECKPOINT_DELAYED,
    Reason.CHECKPOINT_INCOMPLETE,
    Reason.CHECKPOINT_COMPLETE,
    "nothing holds up the next checkpoint",
)
_ARTIFACTS_INCOMPLETE = _Reported(
    ConditionType.ARTIFACTS_INCOMPLETE,
    Reason.FILES_REFUSED,
    Reason.FILES_UPLOADED,
    "no file is refused any more",
)
_FIELD = '"notUploaded"'
"""In the termination message of a pod that has refused files."""
_MOST_PODS = 3
"""So many of these pods are named."""


def merge_reports(draft: Draft, expected: Expected, observed: Observed, named: Mapping[str, PodView]) -> None:
    """Set progress and artifacts from the reports of running pods and the termination messages of ended pods.

    A termination message may name a newer checkpoint than the last report. The older checkpoint may be deleted.
    """
    old = draft.job.status
    evaluation = measured(named.get(expected.evaluator or ""), observed.evaluation)
    ends = [named[name].exit for name in expected.tells_the_end if name in named]
    messages = [message for end in ends if end is not None and (message := read_termination(end)) is not None]
    last_reports = [reported(message) for message in messages]
    progress, artifacts = old.progress, old.artifacts
    _tell(draft, observed.checkpoint_held_up, _CHECKPOINT_DELAYED)
    said = [observed.artifacts_incomplete, *map(artifacts_incomplete, messages)]
    _tell(draft, _incomplete(expected, said, named), _ARTIFACTS_INCOMPLETE)
    for new_progress, new_artifacts in [(observed.progress, observed.artifacts), *last_reports]:
        progress = _progress(expected, progress, new_progress, evaluation)
        artifacts = _artifacts(expected, artifacts, new_artifacts)
    draft.progress, draft.artifacts = progress, artifacts
    moved = (progress, artifacts) != (old.progress, old.artifacts)
    # Each checkpoint is no reason to write a status. The first one of a job without artifacts is.
    if moved or (artifacts is None and old.pod_checkpoint is None):
        draft.pod_checkpoint = observed.pod_checkpoint
    if has_new_checkpoint(draft):
        draft.skipped_checkpoints = None


def _incomplete(
    expected: Expected, reported: Iterable[str | None], named: Mapping[str, PodView]
) -> str | None:
    """Return which files are not uploaded or not restored; empty: none; None: no pod says.

    reported: what rank 0 says, the newest last. Other pods tell of their files by their termination messages.
    """
    said = [each for each in reported if each is not None][-1:]
    # Thousands of pods may have ended. Parse few of their messages.
    telling = [
        (pod, pod.exit)
        for pod in named.values()
        if pod.exit and _FIELD in pod.exit.message and pod.name not in expected.tells_the_end
    ]
    for pod, end in telling[:_MOST_PODS]:
        if incomplete := artifacts_incomplete(read_termination(end) or {}):
            said.append(f"{pod.name}: {incomplete}")
    if len(telling) > _MOST_PODS:
        said.append(f"and files of {len(telling) - _MOST_PODS} more pods")
    return "; ".join(filter(None, said)) if said else None


def _tell(draft: Draft, trouble: str | None, reported: _Reported) -> None:
    """Set a condition. trouble: what a pod reports; empty: nothing; None: the pod does not say."""
    if trouble is not None:
        reason = reported.holds if trouble else reported.holds_not
        draft.set(reported.kind, bool(trouble), reason, trouble or reported.message)


def _progress(
    expected: Expected,
    old: ProgressStatus | None,
    new: ProgressStatus | None,
    evaluation: ProgressStatus | None,
) -> ProgressStatus | None:
    """Return the progress that rank 0 reports, with the last accuracy that the evaluator measured, if any."""
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
    """Return the known artifacts, updated with the new report."""
    if expected.artifacts_uri is None:
        return None
    known = {
        **(old.model_dump(exclude_none=True) if old else {}),
        **(new.model_dump(exclude_none=True) if new else {}),
    }
    return ArtifactsStatus.model_validate(known | {"uri": expected.artifacts_uri})
