"""What a pass over a job decides, from a snapshot of what is known. Pure: a large job's is made in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from dtj.api.job import Fault, Job, Manifest
from dtj.api.unreadable import AnyJob
from dtj.plan.model import Plan
from dtj.reconcile.actions import Action, actions
from dtj.reconcile.delegation import delegated_actions, look_again
from dtj.reconcile.expectation import expectation, stored_expectation
from dtj.reconcile.tensorboard import told
from dtj.reconcile.view import Owned, OwnedDeployment
from dtj.status.draft import Evaluation
from dtj.status.evaluate import evaluate
from dtj.status.observed import Expected, Observed


@dataclass(frozen=True)
class Snapshot:
    """What is known of a job at one moment."""

    observed: Observed
    services: Sequence[Owned]
    configs: Sequence[Owned]
    boards: Sequence[OwnedDeployment]
    """The Deployments of its TensorBoard."""
    mpijob: Manifest | None
    no_tensorboard: str | None
    """Why the API server would not have the job's TensorBoard."""
    now: datetime


@dataclass(frozen=True)
class Decision:
    """What comes of it."""

    evaluation: Evaluation
    todo: list[Action]
    """In order, once the status is stored."""


def decide(job: AnyJob, plan: Plan | None, faults: Sequence[Fault], seen: Snapshot) -> Decision:
    """The status of a job and what is to be done. plan: None where the job has faults."""
    pods = seen.observed.pods
    if plan and isinstance(job, Job):
        expected: Expected | None = expectation(job, plan, pods)
    else:
        expected = stored_expectation(job, pods)
    evaluation = evaluate(job, expected, faults, seen.observed, seen.now)
    if plan and isinstance(job, Job):
        board = told(job, plan, seen.boards, seen.no_tensorboard)
        status = evaluation.status.model_copy(update={"tensorboard": board})
        evaluation = replace(evaluation, status=status)
    if plan and plan.mpijob:
        evaluation = looked_at(evaluation, look_again(evaluation.status, seen.mpijob, seen.now))
        todo = delegated_actions(job, plan, evaluation, seen.mpijob, pods, seen.configs, seen.now)
    else:
        todo = actions(job, plan, evaluation, pods, seen.services, seen.configs)
    return Decision(evaluation, todo)


def looked_at(evaluation: Evaluation, *seconds: float | None) -> Evaluation:
    """The same, to be looked at again as soon as any of these says, too."""
    return replace(evaluation, look_again=soonest(evaluation.look_again, *seconds))


def soonest(*waits: float | None) -> float | None:
    """The shortest of these waits; None where there is none."""
    return min((wait for wait in waits if wait is not None), default=None)
