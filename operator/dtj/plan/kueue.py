"""Kueue: the pods of an attempt form one group, whose scheduling gates Kueue removes when its quota admits the group.

https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods, version 0.19. Consequences for the plan:

- Kueue admits a group when all its pods exist: the operator creates the launcher together with the workers, the
  launcher counts for the quota, and it waits for the workers in its container.
- Kueue keeps a pod that has ended, by a finalizer, until another pod replaces it or the group is finished. A replica
  that starts again has the same pod name as before, so that it can't replace the old pod. A lost pod therefore ends
  the group (`retriable-in-group`), and each attempt is a group of its own.
- The evaluator, which the training does not need, is queued alone.
"""

from __future__ import annotations

from dataclasses import replace

from dtj.api.identity import LABEL_INDEX
from dtj.api.job import Job, Manifest
from dtj.api.names import LABEL_LENGTH
from dtj.api.scheduling_rules import (
    KUEUE_COUNT,
    KUEUE_GROUP,
    KUEUE_INDEX_LABEL,
    KUEUE_QUEUE,
    KUEUE_RETRIABLE,
)
from dtj.plan.merge import merged
from dtj.plan.model import Plan, Replica


def with_kueue(job: Job, plan: Plan) -> Plan:
    """Return the plan with its pods in one group of the queue."""
    grouped = [replica for replica in plan.replicas if replica.name != plan.evaluator]
    names = frozenset(replica.name for replica in grouped)
    queue = {"labels": {KUEUE_QUEUE: job.spec.run_policy.scheduling_policy.queue}}
    workload = group_name(job, grouped[0].attempt)
    group = {
        "labels": {**queue["labels"], KUEUE_GROUP: workload},
        "annotations": {
            KUEUE_COUNT: str(len(grouped)),
            KUEUE_INDEX_LABEL: LABEL_INDEX,
            KUEUE_RETRIABLE: "false",
        },
    }

    def pod(replica: Replica) -> Manifest:
        grouped_pod: Manifest = merged(
            {"metadata": group if replica.name in names else queue}, plan.pod(replica)
        )
        return grouped_pod

    restarts = plan.restarts_with
    if restarts is not None:
        restarts = {name: names if name in names else together for name, together in restarts.items()}
    return replace(
        plan, stages=(plan.replicas,), pod=pod, restarts_with=restarts, workload=workload, all_or_nothing=True
    )


def group_name(job: Job, attempt: int) -> str:
    """Return the name of an attempt's group and of Kueue's Workload. The uid keeps later jobs of that name apart."""
    ending = f"-{job.short_uid}-{attempt}"
    return job.name[: LABEL_LENGTH - len(ending)].rstrip("-") + ending
