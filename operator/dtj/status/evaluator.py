"""The evaluator: whether it has seen the last checkpoint, and what it said."""

from __future__ import annotations

from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.status.failure import is_lost, read_termination, reported
from dtj.status.pods import PodView


def may_still_see(
    evaluator: PodView | None, evaluation: ProgressStatus | None, artifacts: ArtifactsStatus | None
) -> bool:
    """Whether the newest checkpoint is there, the evaluator has not measured it, and might.

    evaluation: what it reports; its step is that of the checkpoint it measured last.
    """
    if evaluator is None or evaluator.deleting or evaluator.succeeded or is_lost(evaluator):
        return False
    return last_step(artifacts) is not None and not has_seen(evaluation, artifacts)


def has_seen(evaluation: ProgressStatus | None, artifacts: ArtifactsStatus | None) -> bool:
    """Whether the evaluator has measured the newest checkpoint."""
    last, seen = last_step(artifacts), evaluation.step if evaluation else None
    return last is not None and seen is not None and seen >= last


def last_step(artifacts: ArtifactsStatus | None) -> int | None:
    """Step of the newest checkpoint."""
    return artifacts.checkpoint.step if artifacts and artifacts.checkpoint else None


def measured(evaluator: PodView | None, evaluation: ProgressStatus | None) -> ProgressStatus | None:
    """What the evaluator found last: as it says at its end, or while it runs."""
    if evaluator is None or evaluator.exit is None:
        return evaluation
    progress, _ = reported(read_termination(evaluator.exit))
    return progress or evaluation
