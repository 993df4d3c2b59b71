"""The decision of a pass over a job, from a snapshot. Pure: for a large job, this code runs in a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dtj.api.accelerators import gpus_of
from dtj.api.job import Job
from dtj.api.names import pod_name
from dtj.api.strategy import Role
from dtj.api.unreadable import AnyJob
from dtj.plan.model import Plan
from dtj.reconcile.actions import Action
from dtj.reconcile.record import recorded
from dtj.reconcile.snapshot import Snapshot
from dtj.reconcile.tensorboard import tensorboard_status
from dtj.status.cleaning import stored_attempts
from dtj.status.decision import Decision
from dtj.status.delegated import with_launcher
from dtj.status.evaluate import evaluate
from dtj.status.observed import Expected
from dtj.status.pods import PodView


@dataclass(frozen=True)
class Decided:
    """The decision of a pass, and the actions that carry the decision out."""

    decision: Decision
    todo: list[Action]
    """The actions in order. The pass carries them out after it has stored the status."""
    wants_record: bool = False
    """Whether the job needs a record pod."""


def decide(seen: Snapshot) -> Decided:
    """Compute the status of a job and the actions that follow from the status."""
    job, plan, pods = seen.job, seen.plan, seen.observed.pods
    if plan and isinstance(job, Job):
        expected: Expected | None = expected_pods(job, plan, pods)
    else:
        expected = stored_expected_pods(job, pods)
    decision = evaluate(job, expected, seen.faults, seen.observed, seen.now)
    if plan and isinstance(job, Job):
        board = tensorboard_status(job, plan, seen.boards, seen.no_tensorboard)
        update: dict[str, object] = {"tensorboard": board}
        if not decision.status.finished:
            update["gpus"] = gpus_of(job.spec, plan.roles)
        decision = replace(decision, status=decision.status.model_copy(update=update))
    decision, wants_record = recorded(seen, decision)
    again = soonest(decision.look_again, seen.delegate.look_again(decision.status, seen.now))
    decision = replace(decision, look_again=again)
    return Decided(decision, seen.delegate.actions(seen, decision), wants_record)


def soonest(*waits: float | None) -> float | None:
    """Return the shortest of these waits in seconds, or None when all are None."""
    return min((wait for wait in waits if wait is not None), default=None)


def expected_pods(job: Job, plan: Plan, pods: Sequence[PodView] = ()) -> Expected:
    """Return what the plan expects of the job's pods.

    pods: the job's pods. mpi-operator runs the launcher as a Kubernetes Job, which chooses the name of its pod.
    """
    expected = Expected(
        roles=plan.roles,
        stages=plan.stage_names,
        decisive=plan.decisive,
        reporter=plan.reporter,
        attempts=plan.attempts,
        restarts_with=plan.restarts_with,
        holds_state=frozenset(
            replica.name for replica in plan.replicas if job.spec.rules.roles[replica.role].holds_state
        ),
        evaluator=plan.evaluator,
        evaluator_timeout=plan.evaluator_timeout,
        workload=plan.workload,
        all_or_nothing=plan.all_or_nothing,
        next_stage_on_running=plan.next_stage_on_running,
        created_last=plan.created_last,
        artifacts_uri=job.artifacts_uri,
        gang=job.run_policy.scheduling_policy.gang,
        queue=job.run_policy.scheduling_policy.queue,
        handed_over=plan.mpijob is not None,
    )
    return with_launcher(expected, pods, job.status.current_attempt) if expected.handed_over else expected


def stored_expected_pods(job: AnyJob, pods: Sequence[PodView]) -> Expected | None:
    """Return what the stored status says about the pods of a job that has no plan; None if the status names no pods.

    The spec of a job may break a rule of a newer operator. The existing pods of such a job still run, end, and are
    cleaned up.
    """
    status, attempt = job.status, job.status.current_attempt
    roles = {role: count.desired for role, count in status.replica_statuses.items() if count.desired}
    if job.rules is None:
        return None
    # A job that can be read has the rules of its form already.
    rules = job.rules if isinstance(job, Job) else job.rules.of_pods(roles)
    names = {role: [pod_name(job.name, role, index) for index in range(roles[role])] for role in roles}

    def of(rule: Callable[[Role], object]) -> list[str]:
        return [name for role in rules.names(rule) for name in names.get(role, ())]

    decisive = of(lambda role: role.all_decide) or of(lambda role: role.decides)[:1]
    evaluators = of(lambda role: role.evaluates)
    if not decisive:
        return None
    # The stored status may name roles that the strategy does not have. The pods of these roles end with the job.
    last = of(lambda role: not role.created_first)
    first = [name for role in roles for name in names[role] if name not in last]
    expected = Expected(
        roles=names,
        stages=[stage for stage in (first, last) if stage],
        decisive=decisive,
        reporter=next(iter(of(lambda role: role.reports)), decisive[0]),
        artifacts_uri=status.artifacts.uri if status.artifacts else None,
        attempts=stored_attempts(job, first + last),
        restarts_with=rules.restart_groups(names),
        holds_state=frozenset(of(lambda role: role.holds_state)),
        evaluator=next(iter(evaluators), None),
        planned=False,
        created_last=frozenset(last or first) - {*evaluators},
    )
    return with_launcher(expected, pods, attempt)
