"""The state and the results of the evaluator."""

from __future__ import annotations

from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.status.pods import PodView
from dtj.status.termination import read_termination, reported


def has_ended(evaluator: PodView) -> bool:
    """Return whether the evaluator's program has ended for good."""
    return (
        evaluator.succeeded
        or evaluator.exit is not None
        or evaluator.disrupted
        or evaluator.phase == "Failed"
    )


def has_seen(evaluation: ProgressStatus | None, artifacts: ArtifactsStatus | None) -> bool:
    """Return whether the evaluator has measured the newest checkpoint."""
    last = artifacts.checkpoint.step if artifacts and artifacts.checkpoint else None
    seen = evaluation.step if evaluation else None
    return last is not None and seen is not None and seen >= last


def last_checkpoint(artifacts: ArtifactsStatus | None) -> str | None:
    """Return the name of the newest checkpoint for messages: its step, or else that of its folder.

    Nothing says when the evaluator has seen a checkpoint without a step.
    """
    last = artifacts.checkpoint if artifacts else None
    if last is None:
        return None
    return (last.uri or "").rpartition("/")[2] if last.step is None else str(last.step)


def measured(evaluator: PodView | None, evaluation: ProgressStatus | None) -> ProgressStatus | None:
    """Return the evaluator's last measurement, from its termination message or from its last report."""
    if evaluator is None or evaluator.exit is None:
        return evaluation
    progress, _ = reported(read_termination(evaluator.exit))
    return progress or evaluation
