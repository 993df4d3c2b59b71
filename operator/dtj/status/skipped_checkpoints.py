"""Checkpoints from which a program can't continue: the next attempt restores another checkpoint.

A checkpoint can be intact in the bucket and still be useless, for example if a kill left the program's folder half
written. The operator notices only that the program fails before its first step. `evaluate` calls `skip_checkpoint`
after a failure of the program.
"""

from __future__ import annotations

from dtj.api.shape import Shape
from dtj.api.status import MOST_SKIPPED
from dtj.status.draft import Draft
from dtj.status.failure import Loss
from dtj.status.times import seconds_since
from dtj_trainer.contract.failure_class import FailureClass

SOON_SECONDS = 600.0
"""A program that reports no steps counts as continued from its checkpoint after it has run for these seconds."""
_BY_PROGRAM = frozenset[str](
    {FailureClass.APPLICATION_ERROR, FailureClass.SIGNAL, FailureClass.OOM_KILLED, FailureClass.DISK_FULL}
)


def has_new_checkpoint(draft: Draft) -> bool:
    """Return whether the newest checkpoint is neither the restored one nor one of those to skip."""
    artifacts = draft.artifacts
    if artifacts is None or artifacts.checkpoint is None:
        return False
    restored = artifacts.restored.uri if artifacts.restored else None
    return artifacts.checkpoint.uri not in (restored, *(draft.skipped_checkpoints or ()))


def skip_checkpoint(draft: Draft, loss: Loss, shape: Shape) -> str:
    """Note the checkpoint from which the lost attempt has not gone on. Return a text that says so, or none."""
    restored = draft.artifacts.restored if draft.artifacts else None
    if restored is None or restored.uri is None or not _is_fruitless(draft, loss, shape):
        return ""
    skipped = draft.skipped_checkpoints or []
    if restored.uri in skipped:
        return ""
    draft.skipped_checkpoints = [*skipped, restored.uri]
    text = f"; the attempt had restored {restored.uri} and failed before its first step"
    if len(draft.skipped_checkpoints) < MOST_SKIPPED:
        return f"{text}: the next attempt restores another checkpoint, if there is one"
    others = " and ".join(skipped)
    return f"{text}, like the attempts from {others}: the next attempt restores the newest checkpoint again"


def _is_fruitless(draft: Draft, loss: Loss, shape: Shape) -> bool:
    pod, restored = loss.failure.pod or "", draft.artifacts.restored if draft.artifacts else None
    if restored is None or restored.first_step is not None or loss.failure.failure_class not in _BY_PROGRAM:
        return False
    # In a strategy whose replicas restart alone, only the reporting pod restores a checkpoint.
    if shape.restarts_with is not None and pod != shape.reporter:
        return False
    if restored.attempt != shape.attempts.get(shape.reporter):
        return False
    if has_new_checkpoint(draft):
        return False
    if draft.progress is not None and draft.progress.step is not None:
        return True
    began = draft.job.status.all_running_time
    return began is None or seconds_since(began, draft.now) < SOON_SECONDS
