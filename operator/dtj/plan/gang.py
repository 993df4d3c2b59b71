"""Adds gang scheduling to a plan: the system in `schedulingPolicy.gang` admits all pods together or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from dtj.api.identity import LABEL_INDEX
from dtj.api.job import Job, Manifest
from dtj.api.names import LABEL_LENGTH
from dtj.api.quantities import pod_requests, total
from dtj.api.scheduling_rules import (
    COSCHEDULING_SCHEDULER,
    KUEUE_COUNT,
    KUEUE_GROUP,
    KUEUE_INDEX_LABEL,
    KUEUE_QUEUE,
    KUEUE_RETRIABLE,
    POD_GROUP_LABEL,
    VOLCANO_GROUP,
    VOLCANO_SCHEDULER,
)
from dtj.api.shape import Replica
from dtj.api.spec import Gang
from dtj.plan.merge import merged
from dtj.plan.model import Plan
from dtj.plan.pods import metadata

# Kueue: the pods of an attempt form one group, whose scheduling gates Kueue removes when its quota admits the group.
#
# https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods, version 0.19. Consequences for the plan:
#
# - Kueue admits a group when all its pods exist: the operator creates the launcher together with the workers, the
#   launcher counts for the quota, and it waits for the workers in its container.
# - Kueue keeps a pod that has ended, by a finalizer, until another pod replaces it or the group is finished. A
#   replica that starts again has the same pod name as before, so that it can't replace the old pod. A lost pod
#   therefore ends the group (`retriable-in-group`), and each attempt is a group of its own.
# - The evaluator, which the training does not need, is queued alone.


def with_kueue(job: Job, plan: Plan) -> Plan:
    """Return the plan with its pods in one group of the queue."""
    shape = plan.shape
    names = shape.needed
    queue = {"labels": {KUEUE_QUEUE: job.spec.run_policy.scheduling_policy.queue}}
    workload = group_name(job, shape.attempts[shape.reporter])
    group = {
        "labels": {**queue["labels"], KUEUE_GROUP: workload},
        "annotations": {
            KUEUE_COUNT: str(len(names)),
            KUEUE_INDEX_LABEL: LABEL_INDEX,
            KUEUE_RETRIABLE: "false",
        },
    }

    def pod(replica: Replica) -> Manifest:
        grouped_pod: Manifest = merged(
            {"metadata": group if replica.name in names else queue}, plan.pod(replica)
        )
        return grouped_pod

    restarts = shape.restarts_with
    if restarts is not None:
        restarts = {name: names if name in names else together for name, together in restarts.items()}
    shape = replace(
        shape, stages=(shape.replicas,), restarts_with=restarts, workload=workload, all_or_nothing=True
    )
    return replace(plan, shape=shape, pod=pod)


def group_name(job: Job, attempt: int) -> str:
    """Return the name of an attempt's group and of Kueue's Workload. The uid keeps later jobs of that name apart."""
    ending = f"-{job.short_uid}-{attempt}"
    return job.name[: LABEL_LENGTH - len(ending)].rstrip("-") + ending


# The PodGroups of Volcano and of scheduler-plugins' coscheduling plugin.
#
# https://github.com/volcano-sh/volcano/blob/v1.9.0/config/crd/volcano/bases/scheduling.volcano.sh_podgroups.yaml
# https://github.com/kubernetes-sigs/scheduler-plugins/blob/v0.34.7/kep/42-podgroup-coscheduling/README.md

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
        # For a pod without a PodGroup, such as the launcher, Volcano creates a PodGroup in this queue.
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
    first, least = plan.shape.stages[0], job.spec.run_policy.scheduling_policy.min_available
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
    """Return the sum of the requests of all pods except the evaluator; empty if a template has an invalid quantity,
    which the API server refuses later.
    """
    roles: dict[str, list[Replica]] = {}
    for replica in plan.shape.replicas:
        if replica.name in plan.shape.needed:
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


def with_gang(job: Job, plan: Plan) -> Plan:
    """Return the plan with the additions of the job's schedulingPolicy. Fields of a user's template take
    precedence.
    """
    policy = job.spec.run_policy.scheduling_policy
    if policy.priority_class_name is not None:
        base = {"spec": {"priorityClassName": policy.priority_class_name}}
        plan = replace(plan, pod=_over(base, plan.pod))
    match policy.gang:
        case Gang.COSCHEDULING:
            return with_coscheduling(job, plan)
        case Gang.VOLCANO:
            return with_volcano(job, plan)
        case Gang.KUEUE:
            return with_kueue(job, plan)
        case Gang.NONE:
            return plan


def _over(base: Manifest, pod: Callable[[Replica], Manifest]) -> Callable[[Replica], Manifest]:
    """Return a function that merges the manifest of each pod over a base."""

    def merged_pod(replica: Replica) -> Manifest:
        over: Manifest = merged(base, pod(replica))
        return over

    return merged_pod
