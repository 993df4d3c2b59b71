"""What a plan asks for, as far as the status of its job depends on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dtj.api.job import Job
from dtj.api.names import pod_name
from dtj.api.spec import ParameterServer
from dtj.api.status import JobStatus
from dtj.plan.horovod import LAUNCHER, WORKER
from dtj.plan.model import Plan
from dtj.plan.parameter_server import CHIEF, EVALUATOR, PS
from dtj.plan.pods import artifacts_uri
from dtj.status.delegated import with_launcher
from dtj.status.observed import Expected
from dtj.status.pods import PodView


def expectation(job: Job, plan: Plan, pods: Sequence[PodView]) -> Expected:
    """What is expected of the job's pods. pods: those that are there."""
    expected = Expected(
        replicas=plan.roles,
        stages=plan.stage_names,
        decisive=plan.decisive,
        reporter=plan.reporter,
        artifacts_uri=artifacts_uri(job),
        attempts=plan.attempts,
        restarts_with=plan.restarts_with,
        evaluator=plan.evaluator,
        gang=job.spec.run_policy.scheduling_policy.gang,
        queue=job.spec.run_policy.scheduling_policy.queue,
        workload=plan.workload,
        all_or_nothing=plan.all_or_nothing,
        created_last=plan.created_last,
        evaluator_timeout=(job.spec.parameter_server or ParameterServer()).evaluator_timeout_seconds,
    )
    return with_launcher(expected, pods, max(job.status.attempt, 1)) if plan.mpijob else expected


def stored_expectation(job: Job, pods: Sequence[PodView]) -> Expected | None:
    """The same from the stored status, of a job that has pods and can't be planned any more; None where the status
    tells of no pods.

    A spec may break a rule of a newer operator: the pods that there are go on, end and are cleaned up.
    """
    status, attempt = job.status, max(job.status.attempt, 1)
    roles = {role: count.desired for role, count in status.replica_statuses.items() if count.desired}
    decisive = next((role for role in (LAUNCHER, CHIEF) if role in roles), None)
    if decisive is None:
        return None
    names = {role: [pod_name(job.name, role, index) for index in range(roles[role])] for role in roles}
    alone = decisive == CHIEF
    state = frozenset(names.get(PS, []) + names[decisive])
    last = names[decisive] + names.get(EVALUATOR, [])
    first = [name for role in roles for name in names[role] if name not in last]
    expected = Expected(
        replicas=roles,
        stages=[first, last],
        decisive=names[decisive],
        reporter=names[decisive if alone else WORKER][0],
        artifacts_uri=status.artifacts.uri if status.artifacts else None,
        attempts=stored_attempts(job, status, first + last, alone=alone),
        restarts_with={name: state if name in state else frozenset({name}) for name in first + last}
        if alone
        else None,
        evaluator=next(iter(names.get(EVALUATOR, [])), None),
        created_last=frozenset(names[decisive]),
    )
    return with_launcher(expected, pods, attempt)


def stored_attempts(job: Job, status: JobStatus, pods: Iterable[str], *, alone: bool) -> dict[str, int]:
    """The attempt of each pod by the status, for a job without a plan. alone: whether replicas restart one by one."""
    known = status.replica_attempts or {}
    attempt = max(status.attempt, 1)
    return {name: known.get(name.removeprefix(f"{job.name}-"), 1) if alone else attempt for name in pods}
