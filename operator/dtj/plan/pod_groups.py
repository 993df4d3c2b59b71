"""What the PodGroups of scheduler-plugins and of Volcano have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from dtj.api.job import Job, Manifest
from dtj.api.quantities import pod_requests, total
from dtj.plan.merge import merged
from dtj.plan.model import Plan
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
        needed = [pod for pod in plan.pods if pod["metadata"]["name"] != plan.evaluator]
        group_spec |= {"minResources": resources} if (resources := _resources(needed)) else {}
    group = {
        "apiVersion": api_version,
        "kind": "PodGroup",
        "metadata": metadata(job, job.name),
        "spec": group_spec,
    }
    members = tuple(merged(pod, {"metadata": member}) for pod in first)
    stages = tuple(tuple(merged(every, pod) for pod in stage) for stage in (members, *plan.stages[1:]))
    return replace(plan, stages=stages, pod_group=group)


def _resources(pods: Sequence[Manifest]) -> dict[str, str]:
    """What pods request together, as quantities; empty where a template has what is none, which the API server
    refuses.
    """
    try:
        amounts = total(pod_requests(pod) for pod in pods)
    except (ValueError, TypeError, AttributeError):
        return {}
    return {name: _quantity(value) for name, value in sorted(amounts.items()) if name != "pods"}


def _quantity(value: Decimal) -> str:
    return str(int(value)) if value == int(value) else f"{int((value * 1000).to_integral_value())}m"
