"""Combine the states and the reports of the pods for the status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dtj.api.status import ArtifactsStatus, ProgressStatus, ReplicaStatus
from dtj.status.draft import Draft
from dtj.status.evaluator import measured
from dtj.status.observed import Expected, Observed
from dtj.status.pods import PodView
from dtj.status.termination import read_termination, reported


def present(expected: Expected, pods: Sequence[PodView], attempt: int) -> list[PodView]:
    """The pods of the present attempt; where all start again together, also those that a changed spec leaves out."""
    others = attempt if expected.restarts_with is None else None
    return [pod for pod in pods if pod.attempt == expected.attempts.get(pod.name, others)]


def replica_statuses(expected: Expected, pods: Sequence[PodView]) -> dict[str, ReplicaStatus]:
    """How many pods of each role are in which state."""
    statuses = {}
    for role, desired in expected.replicas.items():
        of_role = [pod for pod in pods if pod.role == role]
        succeeded = sum(pod.succeeded for pod in of_role)
        failed = sum(not pod.succeeded and (pod.phase == "Failed" or pod.exit is not None) for pod in of_role)
        statuses[role] = ReplicaStatus(
            desired=desired,
            active=len(of_role) - succeeded - failed,
            ready=sum(pod.running and pod.ready for pod in of_role),
            succeeded=succeeded,
            failed=failed,
        )
    return statuses


def take_reports(draft: Draft, expected: Expected, observed: Observed, named: Mapping[str, PodView]) -> None:
    """Store the reports of running pods and the termination messages of ended pods.

    A termination message names checkpoints that are newer than the last report. Without those,
    the status could name a checkpoint that was deleted.
    """
    old = draft.job.status
    evaluation = measured(named.get(expected.evaluator or ""), observed.evaluation)
    ends = [named[name].exit for name in expected.tells_the_end if name in named]
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
