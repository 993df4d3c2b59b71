"""Volcano: a PodGroup in a queue, which its pods name in an annotation.

https://github.com/volcano-sh/volcano/blob/v1.9.0/config/crd/volcano/bases/scheduling.volcano.sh_podgroups.yaml
"""

from __future__ import annotations

from dtj.api.job import Job, Manifest
from dtj.api.scheduling_rules import VOLCANO_GROUP, VOLCANO_SCHEDULER
from dtj.plan.model import Plan
from dtj.plan.pod_groups import with_pod_group

API_VERSION = "scheduling.volcano.sh/v1beta1"
_QUEUE = "scheduling.volcano.sh/queue-name"


def scheduled_by_volcano(job: Job, plan: Plan) -> Plan:
    """Return the plan with a PodGroup for Volcano."""
    policy = job.spec.run_policy.scheduling_policy
    spec: Manifest = {}
    every: Manifest = {"spec": {"schedulerName": VOLCANO_SCHEDULER}}
    if policy.queue is not None:
        spec["queue"] = policy.queue
        # Volcano creates a PodGroup of its own for a pod without one, such as the launcher.
        every["metadata"] = {"annotations": {_QUEUE: policy.queue}}
    if policy.priority_class_name is not None:
        spec["priorityClassName"] = policy.priority_class_name
    return with_pod_group(job, plan, API_VERSION, spec, every, {"annotations": {VOLCANO_GROUP: job.name}})
