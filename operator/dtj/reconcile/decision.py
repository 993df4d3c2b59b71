"""What a pass over a job decides, from a snapshot of what is known. Pure: a large job's is made in a thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from dtj.api.checking import check
from dtj.api.job import Fault, Job, Manifest, read_status
from dtj.api.spec import JobSpec, ReplicaSpecs, RunPolicy
from dtj.api.strategies import RULES, UNKNOWN
from dtj.reconcile.actions import Action
from dtj.reconcile.expectation import expectation, stored_expectation
from dtj.reconcile.snapshot import Snapshot
from dtj.reconcile.tensorboard import told
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
    if plan:
        expected: Expected | None = seen.delegate.expected(
            expectation(job, plan), pods, job.status.current_attempt
        )
    else:
        expected = stored_expectation(job, pods)
    decision = evaluate(job, expected, seen.faults, seen.observed, seen.now)
    if plan:
        board = told(job, plan, seen.boards, seen.no_tensorboard)
        decision = replace(decision, status=decision.status.model_copy(update={"tensorboard": board}))
    decision = looked_at(decision, seen.delegate.look_again(decision.status, seen.now))
    return Decided(decision, seen.delegate.actions(seen, plan, decision))


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
