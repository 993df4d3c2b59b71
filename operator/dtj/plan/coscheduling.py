"""The coscheduling plugin of scheduler-plugins: a PodGroup, which its pods name in a label.

https://github.com/kubernetes-sigs/scheduler-plugins/blob/v0.34.7/kep/42-podgroup-coscheduling/README.md
"""

from __future__ import annotations

from dtj.api.job import Job
from dtj.api.scheduling_rules import COSCHEDULING_SCHEDULER, POD_GROUP_LABEL
from dtj.plan.model import Plan
from dtj.plan.pod_groups import with_pod_group

API_VERSION = "scheduling.x-k8s.io/v1alpha1"
# Seconds that scheduled pods keep their resources while other members of the PodGroup can't be scheduled.
_WAIT_SECONDS = 60


def coscheduled(job: Job, plan: Plan) -> Plan:
    """Return the plan with a PodGroup for the coscheduling plugin."""
    every = {"spec": {"schedulerName": COSCHEDULING_SCHEDULER}}
    member = {"labels": {POD_GROUP_LABEL: job.name}}
    return with_pod_group(job, plan, API_VERSION, {"scheduleTimeoutSeconds": _WAIT_SECONDS}, every, member)
