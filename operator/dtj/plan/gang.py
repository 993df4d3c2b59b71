"""Adds gang scheduling to a plan: the system in `schedulingPolicy.gang` admits all pods together or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dtj.api.job import Job, Manifest
from dtj.api.scheduling import Gang
from dtj.plan.kueue import with_kueue
from dtj.plan.merge import merged
from dtj.plan.model import Plan, Replica
from dtj.plan.pod_groups import with_coscheduling, with_volcano


def with_gang(job: Job, plan: Plan) -> Plan:
    """Return the plan with the additions of the job's schedulingPolicy. Fields of a user's template take
    precedence.
    """
    policy = job.spec.run_policy.scheduling_policy
    if policy.priority_class_name is not None:
        base = {"spec": {"priorityClassName": policy.priority_class_name}}
        plan = replace(plan, pod=_over(base, plan.pod))
    match policy.gang:
        case Gang.COSCHEDULING:
            return with_coscheduling(job, plan)
        case Gang.VOLCANO:
            return with_volcano(job, plan)
        case Gang.KUEUE:
            return with_kueue(job, plan)
        case Gang.NONE:
            return plan


def _over(base: Manifest, pod: Callable[[Replica], Manifest]) -> Callable[[Replica], Manifest]:
    """Return a function that merges the manifest of each pod over a base."""

    def merged_pod(replica: Replica) -> Manifest:
        over: Manifest = merged(base, pod(replica))
        return over

    return merged_pod
