"""Check whether the pods of a job fit on the nodes and into the quotas of the namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal

from dtj.api.identity import LABEL_ROLE
from dtj.api.job import Job, Manifest
from dtj.api.quantities import Amounts, all_shown, amounts, pod_limits, pod_requests, shown, total
from dtj.doctor.check import Check, Verdict, failed, ok, warning
from dtj.doctor.findings import JobFindings, Unread
from dtj.doctor.nodes import Need, Node, lacking, needs_of, placed, read_nodes
from dtj.plan.model import Plan

_NOT_ACCELERATORS = ("hugepages-", "attachable-volumes-")
_NO_ROOM = "add nodes, or request less; if the cluster has an autoscaler, submit the job all the same"


def node_checks(job: Job, plan: Plan, findings: JobFindings) -> list[Check]:
    """Check the accelerators, the placement of each role, and the free resources of the nodes."""
    if isinstance(findings.nodes, Unread):
        return [
            warning(
                "nodes",
                f"the nodes can't be read, and the fit of the pods is not checked: {findings.nodes.reason}",
            )
        ]
    pods = [] if isinstance(findings.pods, Unread) else findings.pods
    nodes, needs = read_nodes(findings.nodes, pods, job), needs_of(plan.pods)
    checks = [
        *_claims(plan),
        *_accelerator(job.spec.accelerator.resource_name, needs, nodes),
        *(unplaced for need in needs if (unplaced := _unplaced(need, nodes))),
    ]
    if any(check.verdict is Verdict.FAILED for check in checks):
        return checks
    return [*checks, _fit(needs, nodes, seen=not isinstance(findings.pods, Unread))]


def _claims(plan: Plan) -> Iterator[Check]:
    """Yield a warning for devices of Dynamic Resource Allocation, which are in no resource of a node."""
    roles = sorted(
        {pod["metadata"]["labels"][LABEL_ROLE] for pod in plan.pods if pod["spec"].get("resourceClaims")}
    )
    if roles:
        yield warning(
            "devices",
            f"the {' and '.join(roles)} pods ask for devices by resourceClaims: their fit is not checked",
            "kubectl get deviceclasses,resourceslices",
        )


def _accelerator(resource: str, needs: Sequence[Need], nodes: Sequence[Node]) -> Iterator[Check]:
    name, zero = "accelerators", Decimal(0)
    requested = sum((need.count * need.requests.get(resource, zero) for need in needs), zero)
    if not requested:
        return
    offering = [node for node in nodes if node.allocatable.get(resource)]
    allocatable = sum((node.allocatable[resource] for node in offering), zero)
    free = sum((node.free[resource] for node in offering), zero)
    request = f"the job asks for {requested}"
    if not offering:
        others = sorted({r for node in nodes for r in node.allocatable if "/" in r and not _is_storage(r)})
        instead = f"they offer {', '.join(others)}" if others else "they offer no accelerator"
        yield failed(
            name,
            f"no node offers {resource}, {request}; {instead}",
            "set spec.accelerator.resourceName to a resource of the nodes, install the device plugin, or remove gpus",
        )
        return
    message = f"{resource}: {free} of {allocatable} are free on {_count(offering)}, {request}"
    if requested > allocatable:
        yield failed(name, message, _NO_ROOM)
    elif requested > free:
        yield warning(name, message, "the job waits until other pods end")
    else:
        yield ok(name, message)


def _is_storage(resource: str) -> bool:
    return resource.startswith(_NOT_ACCELERATORS)


def _unplaced(need: Need, nodes: Sequence[Node]) -> Check | None:
    reasons = Counter(reason for node in nodes if (reason := node.refusal(need)))
    if reasons.total() < len(nodes):
        return None
    counts = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common(4))
    return failed(
        "nodes",
        f"no node takes the {need.role} pods, of {len(nodes)}: {counts}",
        "set spec.accelerator.nodeSelector and tolerations, or those of the role's template, to match the nodes",
    )


def _fit(needs: Sequence[Need], nodes: Sequence[Node], *, seen: bool) -> Check:
    name = "room"
    for need in needs:
        taking = [node for node in nodes if not node.refusal(need)]
        short = min((lacking(need, node.allocatable) for node in taking), key=len)
        if short:
            return failed(
                name, f"no node is large enough for a {need.role} pod with {all_shown(short)}", _NO_ROOM
            )
    whole = sum(need.count for need in needs)
    empty = placed(needs, nodes, {node.name: node.allocatable for node in nodes})
    if sum(empty.values()) < whole:
        return failed(name, f"even if nothing else ran, only {_counts(needs, empty)} would fit", _NO_ROOM)
    now = placed(needs, nodes, {node.name: node.free for node in nodes})
    if sum(now.values()) < whole:
        return warning(
            name,
            f"only {_counts(needs, now)} fit into what is free now",
            "the other pods wait until resources are free",
        )
    if not seen:
        return warning(
            name,
            "all pods fit if nothing else runs; pods of other namespaces can't be read",
            "ask for the right `list pods -A`",
        )
    requested = total(need.requests for need in needs for _ in range(need.count))
    return ok(name, f"all {whole} pods fit on {_count(nodes)}: they ask for {_shown_requests(requested)}")


def _count(nodes: Sequence[Node]) -> str:
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"


def _shown_requests(requested: Amounts) -> str:
    return all_shown({name: value for name, value in requested.items() if name != "pods"}) or "nothing"


def _counts(needs: Sequence[Need], fitting: dict[str, int]) -> str:
    return ", ".join(f"{fitting[need.role]} of {need.count} {need.role} pods" for need in needs)


def quota_checks(plan: Plan, findings: JobFindings) -> list[Check]:
    """Check the quotas of the namespace."""
    name = "quota"
    if isinstance(findings.quotas, Unread):
        return [warning(name, f"the quotas of the namespace can't be read: {findings.quotas.reason}")]
    checks = [check for quota in findings.quotas for check in _quota(quota, plan)]
    if checks:
        return checks
    names = ", ".join(quota["metadata"]["name"] for quota in findings.quotas)
    return [ok(name, f"the job fits into {names}" if names else "the namespace has no quota")]


def _quota(quota: Manifest, plan: Plan) -> Iterator[Check]:
    name, quota_name = "quota", quota["metadata"]["name"]
    if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
        yield warning(name, f"{quota_name} has a scope and is not checked")
        return
    status = quota.get("status") or {}
    hard, used = amounts(status.get("hard")), amounts(status.get("used"))
    pods = list(map(_counted_pod, plan.pods))
    requested = _counted(plan, pods)
    for key, limit in hard.items():
        left = limit - used.get(key, Decimal(0))
        if requested.get(key, Decimal(0)) > left:
            request = f"the job asks for {shown(key, requested[key])}"
            yield failed(
                name,
                f"{quota_name} leaves {shown(key, left)} of {shown(key, limit)}, {request}",
                "ask for a larger quota, end other jobs, or request less",
            )
        elif any(key not in pod for pod in pods) and _must_be_set(key):
            yield warning(
                name,
                f"{quota_name} limits {key}, so every container must set {key}, and not all containers of the job do",
                "set resources in every role, unless a LimitRange of the namespace sets defaults",
            )


def _must_be_set(key: str) -> bool:
    return key.removeprefix("requests.").removeprefix("limits.") in ("cpu", "memory")


def _counted(plan: Plan, pods: Sequence[Amounts]) -> Amounts:
    """Return the amounts of a quota that a plan uses, by the keys of the quota. pods: the amounts of each pod."""
    secrets = int(plan.ssh_secret is not None)
    others = {"services": 1, "configmaps": 1, "secrets": secrets}
    objects = {key: Decimal(n) for name, n in others.items() for key in (name, f"count/{name}")}
    return total([objects, *pods])


def _counted_pod(pod: Manifest) -> Amounts:
    requests = pod_requests(pod)
    own = {name: value for name, value in requests.items() if name in ("cpu", "memory", "pods")}
    return {
        **own,
        "count/pods": Decimal(1),
        **{f"requests.{name}": value for name, value in requests.items()},
        **{f"limits.{name}": value for name, value in pod_limits(pod).items()},
    }
