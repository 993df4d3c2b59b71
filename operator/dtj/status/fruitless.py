"""Find checkpoints from which a program can't go on, so that the next attempt restores another one.

Nothing shows that the content of a whole folder is of no use, as a checkpoint that a kill left incomplete. A program
that fails again and again before its first step does.
"""

from __future__ import annotations

from dtj.api.status import MOST_SKIPPED
from dtj.status.draft import Draft
from dtj.status.failure import Loss
from dtj.status.observed import Expected
from dtj.status.times import seconds_since
from dtj_trainer.contract.failure_class import FailureClass

SOON_SECONDS = 600.0
"""A program that reports no steps, and that ran so long, has gone on from its checkpoint."""
_BY_PROGRAM = frozenset[str](
    {FailureClass.APPLICATION_ERROR, FailureClass.SIGNAL, FailureClass.OOM_KILLED, FailureClass.DISK_FULL}
)


def skip_checkpoint(draft: Draft, loss: Loss, expected: Expected) -> str:
    """Note the checkpoint from which the lost attempt has not gone on. Return a text that says so, or none."""
    restored = draft.artifacts.restored if draft.artifacts else None
    if restored is None or restored.uri is None or not _is_fruitless(draft, loss, expected):
        return ""
    skipped = draft.skipped_checkpoints or []
    if restored.uri in skipped:
        return ""
    draft.skipped_checkpoints = [*skipped, restored.uri]
    text = f"; it had restored {restored.uri} and made no step"
    if len(draft.skipped_checkpoints) < MOST_SKIPPED:
        return f"{text}: the next attempt restores another checkpoint, if there is one"
    others = " and ".join(skipped)
    return f"{text}, like the attempts from {others}: the next attempt restores the newest checkpoint again"


def _is_fruitless(draft: Draft, loss: Loss, expected: Expected) -> bool:
    artifacts, pod = draft.artifacts, loss.failure.pod or ""
    restored, newest = (artifacts.restored, artifacts.checkpoint) if artifacts else (None, None)
    if restored is None or restored.first_step is not None or loss.failure.failure_class not in _BY_PROGRAM:
        return False
    # Where a replica restarts alone, only the reporting pod goes on from a checkpoint.
    if expected.restarts_with is not None and pod != expected.reporter:
        return False
    if restored.attempt != expected.attempts.get(expected.reporter):
        return False
    if newest is not None and newest.uri not in (restored.uri, *(draft.skipped_checkpoints or ())):
        return False
    if draft.progress is not None and draft.progress.step is not None:
        return True
    began = draft.job.status.all_running_time
    return began is None or seconds_since(began, draft.now) < SOON_SECONDS
