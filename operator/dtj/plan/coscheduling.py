"""Coscheduling of scheduler-plugins: a PodGroup, named by a label of its pods.

https://github.com/kubernetes-sigs/scheduler-plugins/blob/v0.34.7/kep/42-podgroup-coscheduling/README.md
"""

from __future__ import annotations

from dtj.api.job import Job
from dtj.api.scheduling_rules import COSCHEDULING_SCHEDULER, POD_GROUP_LABEL
from dtj.plan.model import Plan
from dtj.plan.pod_groups import with_pod_group

API_VERSION = "scheduling.x-k8s.io/v1alpha1"
# How long placed pods wait for the others before all are given back, where those can't be placed.
_WAIT_SECONDS = 60


def coscheduled(job: Job, plan: Plan) -> Plan:
    """The plan with its PodGroup."""
    every = {"spec": {"schedulerName": COSCHEDULING_SCHEDULER}}
    member = {"labels": {POD_GROUP_LABEL: job.name}}
    return with_pod_group(job, plan, API_VERSION, {"scheduleTimeoutSeconds": _WAIT_SECONDS}, every, member)
