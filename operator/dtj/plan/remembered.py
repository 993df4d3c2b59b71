"""Caches plans, because most passes over a job need the plan of the pass before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any

from dtj.api.job import Job
from dtj.api.status import JobStatus
from dtj.plan.model import Plan

MOST_REPLICAS = 20_000
"""The size limit of the cache, in replicas of less than 1 kB each. 10 kB of a ConfigMap count as one replica."""


def remembered(plan: Callable[[Job], Plan], most_replicas: int = MOST_REPLICAS) -> Callable[[Job], Plan]:
    """A function that returns the same plans as `plan`, and remembers the plans of the jobs that it planned last.

    Callers must not change a plan. Several threads may call the function. `plan` sees only those fields of a job's
    status that the function compares, so a plan cannot depend on other fields. The function always remembers the last
    plan, whatever its size.
    """
    plans: OrderedDict[str, tuple[Mapping[str, Any], Plan]] = OrderedDict()
    replicas, lock = 0, Lock()

    def planned(job: Job) -> Plan:
        nonlocal replicas
        status = JobStatus(
            # Plans of a job that has not begun and of its first attempt are equal.
            attempt=job.status.current_attempt,
            replica_attempts=job.status.replica_attempts,
            node_failures=job.status.node_failures,
            ssh_secret=job.status.ssh_secret,
        )
        needed = vars(replace(job, status=status))
        known = plans.get(job.uid)
        made = known[1] if known and known[0] == needed else plan(replace(job, status=status))
        with lock:
            before = plans.pop(job.uid, None)
            plans[job.uid] = (needed, made)
            replicas += _weight(made) - (_weight(before[1]) if before else 0)
            while replicas > most_replicas and len(plans) > 1:
                _, (_, oldest) = plans.popitem(last=False)
                replicas -= _weight(oldest)
        return made

    return planned


def _weight(plan: Plan) -> int:
    return len(plan.replicas) + sum(map(len, plan.config["data"].values())) // 10_000
