"""Lists of pods from the API server: a pod that the cache does not have may still exist.

Each restart costs one or two such lists, however many pods the job has. A job without restarts costs none.
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
    """A pod exists that the cache misses, and the pass must wait until this pod has ended."""


async def misses_one(cluster: Cluster, job: AnyJob, plan: Plan, seen: Set[str]) -> bool:
    """Return whether a pod of the plan exists that the cache misses. Such a pod is not lost: its attempt goes on.

    seen: names of the pods in the cache. The cache misses a pod, for example, when it has the status that another
    replica of the operator wrote, and does not have that replica's pods yet.
    """
    absent = plan.attempts.keys() - seen
    if not absent:
        return False
    return any(
        pod["metadata"]["name"] in absent and is_of(pod, job) and not pod["metadata"].get("deletionTimestamp")
        for pod in await cluster.pods_of(job.namespace, job.name)
    )


async def await_earlier(cluster: Cluster, job: AnyJob, attempt: int) -> None:
    """Check that no pod of an earlier attempt exists: two attempts never run at once.

    List all pods of the job: an earlier attempt may have had more pods than the plan has now.

    Raises Unseen while a pod of an earlier attempt exists.
    """
    pods = [view_pod(pod) for pod in await cluster.pods_of(job.namespace, job.name) if is_of(pod, job)]
    names = sorted(pod.name for pod in pods if pod.attempt < attempt)
    if names:
        raise Unseen(f"attempt {attempt} waits for {some(names)} of an attempt before, not seen so far")
