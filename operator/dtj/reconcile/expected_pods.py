"""The pods that a plan expects, as far as the status of the job depends on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dtj.api.job import Job
from dtj.api.names import pod_name
from dtj.api.strategy import Role
from dtj.api.unreadable import AnyJob
from dtj.plan.model import Plan
from dtj.plan.pods import artifacts_uri
from dtj.status.cleaning import stored_attempts
from dtj.status.delegated import with_launcher
from dtj.status.observed import Expected
from dtj.status.pods import PodView


def expected_pods(job: Job, plan: Plan) -> Expected:
    """Return what the plan expects of the job's pods."""
    return Expected(
        replicas=plan.roles,
        stages=plan.stage_names,
        decisive=plan.decisive,
        reporter=plan.reporter,
        artifacts_uri=artifacts_uri(job),
        attempts=plan.attempts,
        restarts_with=plan.restarts_with,
        holds_state=frozenset(
            replica.name for replica in plan.replicas if job.spec.rules.roles[replica.role].holds_state
        ),
        evaluator=plan.evaluator,
        gang=job.run_policy.scheduling_policy.gang,
        queue=job.run_policy.scheduling_policy.queue,
        workload=plan.workload,
        all_or_nothing=plan.all_or_nothing,
        next_stage_on_running=plan.next_stage_on_running,
        created_last=plan.created_last,
        evaluator_timeout=plan.evaluator_timeout,
    )


def stored_expected_pods(job: AnyJob, pods: Sequence[PodView]) -> Expected | None:
    """Return what the stored status says about the pods of a job that has no plan; None if the status names no pods.

    The spec of a job may break a rule of a newer operator. The existing pods of such a job still run, end, and are
    cleaned up.
    """
    status, attempt = job.status, job.status.current_attempt
    roles = {role: count.desired for role, count in status.replica_statuses.items() if count.desired}
    rules = job.rules
    if rules is None:
        return None
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
        replicas=roles,
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
