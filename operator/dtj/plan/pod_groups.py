"""What the PodGroups of scheduler-plugins and of Volcano have in common."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from dtj.api.job import Job, Manifest
from dtj.api.quantities import pod_requests, total
from dtj.plan.merge import merged
from dtj.plan.model import Plan, Replica
from dtj.plan.pods import metadata


def with_pod_group(
    job: Job, plan: Plan, api_version: str, spec: Manifest, every: Manifest, member: Manifest
) -> Plan:
    """The plan with a PodGroup of the first stage's pods.

    A launcher or chief that waits until those are ready is no member: the group would wait for it, and it for the
    group. spec: of the group, without what is counted here. every: what all pods have unless they say otherwise: one
    scheduler knows what it holds for them. member: the metadata of those in the group.
    """
    first, least = plan.stages[0], job.spec.run_policy.scheduling_policy.min_available
    group_spec: Manifest = {"minMember": least or len(first), **spec}
    if least is None:
        # With what the launcher needs: the workers are not to begin where no room is left for it.
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
        made: Manifest = merged(every, merged(base, {"metadata": member}) if replica in members else base)
        return made

    return replace(plan, pod=pod, pod_group=group)


def _resources(plan: Plan) -> dict[str, str]:
    """What the pods but the evaluator request together, as quantities; empty where a template has what is none, which
    the API server refuses.
    """
    roles: dict[str, list[Replica]] = {}
    for replica in plan.replicas:
        if replica.name != plan.evaluator:
            roles.setdefault(replica.role, []).append(replica)
    try:
        # The pods of a role are alike: one of each is made.
        requests = ((pod_requests(plan.pod(role[0])), len(role)) for role in roles.values())
        amounts = total({name: value * count for name, value in each.items()} for each, count in requests)
    except (ValueError, TypeError, AttributeError):
        return {}
    return {name: _quantity(value) for name, value in sorted(amounts.items()) if name != "pods"}


def _quantity(value: Decimal) -> str:
    return str(int(value)) if value == int(value) else f"{int((value * 1000).to_integral_value())}m"
