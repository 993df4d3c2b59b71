"""Kueue: all pods of an attempt are one group, which Kueue holds by a scheduling gate until its quota admits it.

https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods, version 0.19. What follows from how it works:

- A group is admitted when all of its pods are there: the launcher is made together with the workers, is counted, and
  waits for them in its container.
- Kueue keeps a pod that has ended, by a finalizer, until another one took its place or the group is over. A replica
  that starts again has the name of the one before: so a loss is the end of the group (`retriable-in-group`), and each
  attempt is a group of its own.
- The evaluator, without which the training goes on, is queued alone.
"""

from __future__ import annotations

from dataclasses import replace

from dtj.api.identity import LABEL_ATTEMPT
from dtj.api.job import Job, Manifest
from dtj.api.names import LABEL_LENGTH
from dtj.api.scheduling_rules import KUEUE_COUNT, KUEUE_GROUP, KUEUE_QUEUE, KUEUE_RETRIABLE
from dtj.plan.merge import merged
from dtj.plan.model import Plan


def queued(job: Job, plan: Plan) -> Plan:
    """The plan with its pods in one group of the queue."""
    grouped = [pod for pod in plan.pods if pod["metadata"]["name"] != plan.evaluator]
    names = frozenset(pod["metadata"]["name"] for pod in grouped)
    queue = {"labels": {KUEUE_QUEUE: job.spec.run_policy.scheduling_policy.queue}}
    group = {
        "labels": {**queue["labels"], KUEUE_GROUP: group_name(job, grouped[0])},
        "annotations": {KUEUE_COUNT: str(len(grouped)), KUEUE_RETRIABLE: "false"},
    }
    pods = tuple(
        merged({"metadata": group if pod["metadata"]["name"] in names else queue}, pod) for pod in plan.pods
    )
    restarts = plan.restarts_with
    if restarts is not None:
        restarts = {name: names if name in names else together for name, together in restarts.items()}
    return replace(plan, stages=(pods,), restarts_with=restarts, whole=True)


def group_name(job: Job, pod: Manifest) -> str:
    """Name of a pod's group, and of Kueue's Workload: another one for each attempt, and for each job of a name."""
    ending = f"-{job.short_uid}-{pod['metadata']['labels'][LABEL_ATTEMPT]}"
    return job.name[: LABEL_LENGTH - len(ending)].rstrip("-") + ending
