"""What a pass over a job decides, from a snapshot of what is known. Pure: a large job's is made in a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from dtj.api.checking import check
from dtj.api.job import Fault, Job, Manifest, read_status
from dtj.api.spec import JobSpec, ReplicaSpecs, RunPolicy
from dtj.api.strategies import RULES, UNKNOWN
from dtj.plan.model import Plan
from dtj.reconcile.actions import Action, actions
from dtj.reconcile.delegation import delegated_actions, look_again
from dtj.reconcile.expectation import expectation, stored_expectation
from dtj.reconcile.tensorboard import told
from dtj.reconcile.view import Owned, OwnedDeployment
from dtj.status.draft import Evaluation
from dtj.status.evaluate import evaluate
from dtj.status.observed import Observed


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


def decide(job: Job, plan: Plan | None, faults: Sequence[Fault], seen: Snapshot) -> Decision:
    """The status of a job and what is to be done. plan: None where the job has faults."""
    pods = seen.observed.pods
    expected = expectation(job, plan, pods) if plan else stored_expectation(job, pods)
    evaluation = evaluate(job, expected, faults, seen.observed, seen.now)
    if plan:
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


def read(manifest: Manifest) -> tuple[Job, list[Fault]]:
    """The job and its faults; of one that has not the resource's form, what can be read."""
    job, wrong = check(manifest)
    if job is None:
        metadata = manifest["metadata"]
        status = read_status(manifest.get("status") or {})
        spec = _readable(manifest.get("spec"))
        job = Job(
            metadata["name"], metadata["namespace"], metadata["uid"], metadata["generation"], spec, status
        )
    return job, wrong


def _readable(spec: Any) -> JobSpec:
    """A spec that makes no pods: how the job is retried, suspended and cleaned up, as far as that can be read."""
    given: Mapping[str, Any] = spec if isinstance(spec, dict) else {}
    strategy = given.get("strategy")
    # Not validated: a name that is not registered is no valid spec.
    return JobSpec.model_construct(
        strategy=strategy if isinstance(strategy, str) and strategy in RULES else UNKNOWN.name,
        image="unknown",
        replica_specs=ReplicaSpecs(),
        run_policy=_run_policy(given.get("runPolicy")),
    )


def _run_policy(value: Any) -> RunPolicy:
    """The fields of a run policy that can be read."""
    known: Mapping[str, Any] = value if isinstance(value, dict) else {}
    try:
        return RunPolicy.model_validate(known, extra="ignore")
    except ValidationError as error:
        unread = {item["loc"][0] for item in error.errors()}
        return RunPolicy.model_validate({k: v for k, v in known.items() if k not in unread}, extra="ignore")
