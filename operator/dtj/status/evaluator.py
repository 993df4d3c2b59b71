"""The evaluator after the chief has succeeded: how long it may still run, and what it said."""

from __future__ import annotations

from datetime import datetime

from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.status.failure import is_lost, read_termination, reported
from dtj.status.pods import PodView
from dtj.status.times import seconds_since


def seconds_left(
    evaluator: PodView | None,
    chief: PodView,
    artifacts: ArtifactsStatus | None,
    evaluation: ProgressStatus | None,
    timeout: float,
    now: datetime,
) -> float:
    """Seconds that the job still waits for the evaluator; 0 when it has seen the last checkpoint, or never will.

    evaluation: what it reports; its step is that of the checkpoint it measured last. timeout: from the chief's end.
    """
    if evaluator is None or evaluator.deleting or evaluator.succeeded or is_lost(evaluator):
        return 0.0
    if last_step(artifacts) is None or has_seen(evaluation, artifacts):
        return 0.0
    finished = chief.exit.finished if chief.exit else None
    passed = seconds_since(finished, now) if finished else timeout
    return min(max(timeout - passed, 0.0), timeout)


def has_seen(evaluation: ProgressStatus | None, artifacts: ArtifactsStatus | None) -> bool:
    """Whether the evaluator has measured the newest checkpoint."""
    last = last_step(artifacts)
    return evaluation is not None and last is not None and (evaluation.step or -1) >= last


def last_step(artifacts: ArtifactsStatus | None) -> int | None:
    """Step of the newest checkpoint."""
    return artifacts.checkpoint.step if artifacts and artifacts.checkpoint else None


def measured(evaluator: PodView | None, evaluation: ProgressStatus | None) -> ProgressStatus | None:
    """What the evaluator found last: as it says at its end, or while it runs."""
    if evaluator is None or evaluator.exit is None:
        return evaluation
    progress, _ = reported(read_termination(evaluator.exit))
    return progress or evaluation
