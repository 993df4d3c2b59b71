"""Plans that were made a moment ago: most passes over a job need the one before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dtj.api.job import Job
from dtj.api.status import JobStatus
from dtj.plan.model import Plan

MOST_PODS = 1000
"""In all plans that are remembered together; each takes some 10 kB."""


def remembered(plan: Callable[[Job], Plan], most_pods: int = MOST_PODS) -> Callable[[Job], Plan]:
    """The same plans, without the work for those of the jobs that were planned last; nobody may change a plan.

    Of a job's status a plan gets what is told apart here, and nothing else, so that it can not depend on more.
    """
    plans: OrderedDict[str, tuple[Mapping[str, Any], Plan]] = OrderedDict()
    pods = 0

    def planned(job: Job) -> Plan:
        nonlocal pods
        status = JobStatus(
            attempt=job.status.attempt,
            replica_attempts=job.status.replica_attempts,
            node_failures=job.status.node_failures,
        )
        needed = vars(replace(job, status=status))
        known = plans.pop(job.uid, None)
        made = known[1] if known and known[0] == needed else plan(replace(job, status=status))
        plans[job.uid] = (needed, made)
        pods += len(made.pods) - (len(known[1].pods) if known else 0)
        while pods > most_pods:
            _, (_, oldest) = plans.popitem(last=False)
            pods -= len(oldest.pods)
        return made

    return planned
