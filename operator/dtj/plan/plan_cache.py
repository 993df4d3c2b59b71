"""A cache of plans: most passes over a job need the plan of the pass before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from threading import Lock
from typing import Any

from dtj.api.job import Job
from dtj.api.status import JobStatus
from dtj.plan.model import Plan
from dtj.plan.recipe import START_SCRIPT

MOST_REPLICAS = 20_000
"""The largest number of replicas in all cached plans together. Each replica takes less than 1 kB."""
# A plan keeps the templates of its job as data. Long templates count as more replicas: data takes four times the
# characters of the job file, and at least 64 bytes more for each line, which has one field or list entry.
_CHARACTERS_A_REPLICA = 250
_LINES_A_REPLICA = 5


class PlanCache:
    """Returns the plans that `plan` makes, and caches those of the jobs that it planned last.

    Callers must not change a plan. Several threads may call the cache. `plan` sees only those fields of a job's
    status that the cache compares, so a plan cannot depend on other fields. The cache always holds the last plan,
    whatever the plan's size, but no plan of a job that has ended: such a job has few passes, and is kept for long.
    """

    def __init__(self, plan: Callable[[Job], Plan], most_replicas: int = MOST_REPLICAS) -> None:
        """Cache the plans of `plan`. most_replicas: replicas in all cached plans together."""
        self._plan = plan
        self._most_replicas = most_replicas
        self._plans: OrderedDict[str, tuple[Mapping[str, Any], Plan]] = OrderedDict()
        self._replicas = 0
        self._lock = Lock()

    def __call__(self, job: Job) -> Plan:
        """Return the plan of a job."""
        status = JobStatus(
            # A job without an attempt gets the plan of its first attempt, so that the plan stays cached when that
            # begins.
            attempt=job.attempt,
            replica_attempts=job.status.replica_attempts,
            node_failures=job.status.node_failures,
            ssh_secret=job.status.ssh_secret,
            restarts=job.status.restarts,
            skipped_checkpoints=job.status.skipped_checkpoints,
            resumed_from=job.status.resumed_from,
            # The plan of the first attempt does not need the start time. Leave it out: the status gets the time
            # later, and the cached plan stays valid.
            start_time=job.status.start_time if job.attempt > 1 else None,
        )
        ended = job.finished
        job = replace(job, status=status)
        if ended:
            self._forget(job.uid)
            return self._plan(job)
        needed = vars(job)
        before, plan = self._plans.get(job.uid, ({}, None))
        if plan is None or before != needed:
            lasts = plan is not None and not plan.mpijob and _differs_in_pods(before, needed)
            plan = self._with_new_pods(job, plan) if plan and lasts else self._plan(job)
        with self._lock:
            self._drop(job.uid)
            self._plans[job.uid] = (needed, plan)
            self._replicas += weight(plan)
            while self._replicas > self._most_replicas and len(self._plans) > 1:
                _, (_, oldest) = self._plans.popitem(last=False)
                self._replicas -= weight(oldest)
        return plan

    def _with_new_pods(self, job: Job, plan: Plan) -> Plan:
        """Return the plan with other pods. Plan the job anew only when the first pod is made.

        A restart in place, for example, makes none.
        """
        made = cache(lambda: self._plan(job))
        return replace(
            plan, pod=lambda replica: made().pod(replica), recipe=lambda replica: made().recipe(replica)
        )

    def _forget(self, uid: str) -> None:
        with self._lock:
            self._drop(uid)

    def _drop(self, uid: str) -> None:
        _, plan = self._plans.pop(uid, (None, None))
        self._replicas -= weight(plan) if plan else 0


_OF_PODS = ("restarts", "node_failures")
"""The fields of a status on which only the manifests of pods depend."""


def _differs_in_pods(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether the plans of two jobs differ only in the manifests of pods."""
    status = now["status"].model_copy(update={name: getattr(before["status"], name) for name in _OF_PODS})
    return before == {**now, "status": status}


def weight(plan: Plan) -> int:
    """Return how many replicas a plan counts as."""
    # Do not count the start script: all plans share one copy of the text.
    texts: list[str] = [text for name, text in plan.config["data"].items() if name != START_SCRIPT]
    lines = sum(text.count("\n") for text in texts)
    data = sum(map(len, texts)) // _CHARACTERS_A_REPLICA + lines // _LINES_A_REPLICA
    return len(plan.shape.replicas) + data
