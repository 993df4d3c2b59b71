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

from dtj.api.job import Job, Manifest
from dtj.api.names import LABEL_LENGTH
from dtj.api.scheduling_rules import KUEUE_COUNT, KUEUE_GROUP, KUEUE_QUEUE, KUEUE_RETRIABLE
from dtj.plan.merge import merged
from dtj.plan.model import Plan, Replica


def queued(job: Job, plan: Plan) -> Plan:
    """The plan with its pods in one group of the queue."""
    grouped = [replica for replica in plan.replicas if replica.name != plan.evaluator]
    names = frozenset(replica.name for replica in grouped)
    queue = {"labels": {KUEUE_QUEUE: job.spec.run_policy.scheduling_policy.queue}}
    workload = group_name(job, grouped[0].attempt)
    group = {
        "labels": {**queue["labels"], KUEUE_GROUP: workload},
        "annotations": {KUEUE_COUNT: str(len(grouped)), KUEUE_RETRIABLE: "false"},
    }

    def pod(replica: Replica) -> Manifest:
        made: Manifest = merged({"metadata": group if replica.name in names else queue}, plan.pod(replica))
        return made

    restarts = plan.restarts_with
    if restarts is not None:
        restarts = {name: names if name in names else together for name, together in restarts.items()}
    return replace(
        plan, stages=(plan.replicas,), pod=pod, restarts_with=restarts, workload=workload, all_or_nothing=True
    )


def group_name(job: Job, attempt: int) -> str:
    """Name of an attempt's group, and of Kueue's Workload: another one for each job of a name."""
    ending = f"-{job.short_uid}-{attempt}"
    return job.name[: LABEL_LENGTH - len(ending)].rstrip("-") + ending
