"""Pods that the cache misses: that one is not in a cache proves nothing, so the API server is asked for a list.

Each restart costs such a list or two, however many pods the job has; a job that nothing disturbs costs none.
"""

from __future__ import annotations

from collections.abc import Set

from dtj.api.unreadable import AnyJob
from dtj.cluster.port import Cluster
from dtj.plan.model import Plan
from dtj.reconcile.view import is_of
from dtj.status.overdue import some
from dtj.status.pods import view_pod


class Unseen(Exception):
    """A pod is there that the cache misses and that stands in the way."""


async def misses_one(cluster: Cluster, job: AnyJob, plan: Plan, seen: Set[str]) -> bool:
    """Whether a pod of the plan is there, not among those seen: no attempt is given up for what only looks lost.

    So after another operator's status was seen before its pods were.
    """
    absent = plan.attempts.keys() - seen
    if not absent:
        return False
    return any(
        pod["metadata"]["name"] in absent and is_of(pod, job) and not pod["metadata"].get("deletionTimestamp")
        for pod in await cluster.pods_of(job.namespace, job.name)
    )


async def await_earlier(cluster: Cluster, job: AnyJob, attempt: int) -> None:
    """Raises Unseen while a pod of an attempt before this one is there: two attempts never run at once.

    All are listed: an earlier attempt may have had more of them than the plan has now.
    """
    pods = [view_pod(pod) for pod in await cluster.pods_of(job.namespace, job.name) if is_of(pod, job)]
    names = sorted(pod.name for pod in pods if pod.attempt < attempt)
    if names:
        raise Unseen(f"attempt {attempt} waits for {some(names)} of an attempt before, not seen so far")
