"""The decision of a pass over a job, from a snapshot. Pure: for a large job, this code runs in a thread."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dtj.api.job import Job
from dtj.reconcile.actions import Action
from dtj.reconcile.expected_pods import expected_pods, stored_expected_pods
from dtj.reconcile.snapshot import Snapshot
from dtj.reconcile.tensorboard import tensorboard_status
from dtj.status.decision import Decision
from dtj.status.evaluate import evaluate
from dtj.status.observed import Expected


@dataclass(frozen=True)
class Decided:
    """The decision of a pass, and the actions that carry the decision out."""

    decision: Decision
    todo: list[Action]
    """The actions in order. The pass carries them out after it has stored the status."""


def decide(seen: Snapshot) -> Decided:
    """Compute the status of a job and the actions that follow from the status."""
    job, plan, pods = seen.job, seen.plan, seen.observed.pods
    if plan and isinstance(job, Job):
        expected: Expected | None = seen.delegate.expected(
            expected_pods(job, plan), pods, job.status.current_attempt
        )
    else:
        expected = stored_expected_pods(job, pods)
    decision = evaluate(job, expected, seen.faults, seen.observed, seen.now)
    if plan and isinstance(job, Job):
        board = tensorboard_status(job, plan, seen.boards, seen.no_tensorboard)
        decision = replace(decision, status=decision.status.model_copy(update={"tensorboard": board}))
    decision = looked_at(decision, seen.delegate.look_again(decision.status, seen.now))
    return Decided(decision, seen.delegate.actions(seen, decision))


def looked_at(decision: Decision, *seconds: float | None) -> Decision:
    """Return the decision with `look_again` lowered to the shortest of these waits in seconds."""
    return replace(decision, look_again=soonest(decision.look_again, *seconds))


def soonest(*waits: float | None) -> float | None:
    """Return the shortest of these waits in seconds, or None when all are None."""
    return min((wait for wait in waits if wait is not None), default=None)
