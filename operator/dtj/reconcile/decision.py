"""What a pass over a job decides, from a snapshot of what is known. Pure: a large job's is made in a thread."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dtj.api.job import Job
from dtj.reconcile.actions import Action
from dtj.reconcile.expected_pods import expected_pods, stored_expected_pods
from dtj.reconcile.snapshot import Snapshot
from dtj.reconcile.tensorboard import tensorboard_status
from dtj.status.draft import Evaluation
from dtj.status.evaluate import evaluate
from dtj.status.observed import Expected


@dataclass(frozen=True)
class Decided:
    """What a pass is to do."""

    decision: Evaluation
    todo: list[Action]
    """In order, once the status is stored."""


def decide(seen: Snapshot) -> Decided:
    """The status of a job and what follows from it."""
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


def looked_at(evaluation: Evaluation, *seconds: float | None) -> Evaluation:
    """The same, to be looked at again as soon as any of these says, too."""
    return replace(evaluation, look_again=soonest(evaluation.look_again, *seconds))


def soonest(*waits: float | None) -> float | None:
    """The shortest of these waits; None where there is none."""
    return min((wait for wait in waits if wait is not None), default=None)
