"""The PodGroups of Volcano and of scheduler-plugins' coscheduling plugin.

https://github.com/volcano-sh/volcano/blob/v1.9.0/config/crd/volcano/bases/scheduling.volcano.sh_podgroups.yaml
https://github.com/kubernetes-sigs/scheduler-plugins/blob/v0.34.7/kep/42-podgroup-coscheduling/README.md
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from dtj.api.job import Job, Manifest
from dtj.api.quantities import pod_requests, total
from dtj.api.scheduling_rules import COSCHEDULING_SCHEDULER, POD_GROUP_LABEL, VOLCANO_GROUP, VOLCANO_SCHEDULER
from dtj.plan.merge import merged
from dtj.plan.model import Plan, Replica
from dtj.plan.pods import metadata

_COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"
_VOLCANO = "scheduling.volcano.sh/v1beta1"
# The annotation by which a pod names its queue of Volcano.
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
# Seconds that scheduled pods keep their resources while other members of the PodGroup can't be scheduled.
_WAIT_SECONDS = 60


def with_coscheduling(job: Job, plan: Plan) -> Plan:
    """Return the plan with a PodGroup for the coscheduling plugin."""
    every = {"spec": {"schedulerName": COSCHEDULING_SCHEDULER}}
    member = {"labels": {POD_GROUP_LABEL: job.name}}
    return _with_pod_group(job, plan, _COSCHEDULING, {"scheduleTimeoutSeconds": _WAIT_SECONDS}, every, member)


def with_volcano(job: Job, plan: Plan) -> Plan:
    """Return the plan with a PodGroup for Volcano."""
    policy = job.spec.run_policy.scheduling_policy
    spec: Manifest = {}
    every: Manifest = {"spec": {"schedulerName": VOLCANO_SCHEDULER}}
    if policy.queue is not None:
        spec["queue"] = policy.queue
        # Volcano creates a PodGroup of its own for a pod without one, such as the launcher.
        every["metadata"] = {"annotations": {_VOLCANO_QUEUE: policy.queue}}
    if policy.priority_class_name is not None:
        spec["priorityClassName"] = policy.priority_class_name
    return _with_pod_group(job, plan, _VOLCANO, spec, every, {"annotations": {VOLCANO_GROUP: job.name}})


def _with_pod_group(
    job: Job, plan: Plan, api_version: str, spec: Manifest, every: Manifest, member: Manifest
) -> Plan:
    """Return the plan with a PodGroup of the first stage's pods.

    A launcher or chief is created when the first stage is ready, and therefore is no member: the group would wait for
    a pod that waits for the group. spec: fields of the group besides the counted ones. every: fields of all pods
    unless the template sets them; all pods use one scheduler, so that it knows their resources. member: metadata of
    members.
    """
    first, least = plan.stages[0], job.spec.run_policy.scheduling_policy.min_available
    group_spec: Manifest = {"minMember": least or len(first), **spec}
    if least is None:
        # Include the launcher's resources: the workers must not start where no room is left for the launcher.
        group_spec |= {"minResources": resources} if (resources := _resources(plan)) else {}
    group = {
        "apiVersion": api_version,
        "kind": "PodGroup",
        "metadata": metadata(job, job.name),
        "spec": group_spec,
    }
    members = frozenset(first)

    def pod(replica: Replica) -> Manifest:
        base = plan.pod(replica)
        manifest: Manifest = merged(every, merged(base, {"metadata": member}) if replica in members else base)
        return manifest

    return replace(plan, pod=pod, pod_group=group)


def _resources(plan: Plan) -> dict[str, str]:
    """Return what all pods except the evaluator request together; empty where a template has an invalid quantity,
    which the API server refuses later.
    """
    roles: dict[str, list[Replica]] = {}
    for replica in plan.replicas:
        if replica.name != plan.evaluator:
            roles.setdefault(replica.role, []).append(replica)
    try:
        # Pods of a role are alike, so that one manifest of each role suffices.
        requests = ((pod_requests(plan.pod(role[0])), len(role)) for role in roles.values())
        amounts = total({name: value * count for name, value in each.items()} for each, count in requests)
    except (ValueError, TypeError, AttributeError):
        return {}
    return {name: _quantity(value) for name, value in sorted(amounts.items()) if name != "pods"}


def _quantity(value: Decimal) -> str:
    return str(int(value)) if value == int(value) else f"{int((value * 1000).to_integral_value())}m"
