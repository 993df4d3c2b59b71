"""Whether a job's pods fit on the nodes and into the quotas of its namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal

from dtj.api.job import Job, Manifest
from dtj.api.quantities import Amounts, all_shown, amounts, pod_limits, pod_requests, shown, total
from dtj.doctor.check import Check, Verdict, failed, ok, warning
from dtj.doctor.findings import JobFindings, Unread
from dtj.doctor.nodes import Need, Node, lacking, needs_of, placed, read_nodes
from dtj.plan.model import Plan

_NOT_ACCELERATORS = ("hugepages-", "attachable-volumes-")
_NO_ROOM = "add nodes, or ask for less; where the cluster adds nodes by itself, submit and see"


def node_checks(job: Job, plan: Plan, found: JobFindings) -> list[Check]:
    """Accelerators, placement, and room on the nodes."""
    if isinstance(found.nodes, Unread):
        return [warning("nodes", f"whether the pods find nodes can't be seen: {found.nodes.reason}")]
    pods = [] if isinstance(found.pods, Unread) else found.pods
    nodes, needs = read_nodes(found.nodes, pods, job), needs_of(plan.pods)
    checks = [
        *_accelerator(job.spec.accelerator.resource_name, needs, nodes),
        *(unplaced for need in needs if (unplaced := _unplaced(need, nodes))),
    ]
    if any(check.verdict is Verdict.FAILED for check in checks):
        return checks
    return [*checks, _fit(needs, nodes, seen=not isinstance(found.pods, Unread))]


def _accelerator(resource: str, needs: Sequence[Need], nodes: Sequence[Node]) -> Iterator[Check]:
    name, zero = "accelerators", Decimal(0)
    asked = sum((need.count * need.requests.get(resource, zero) for need in needs), zero)
    if not asked:
        return
    offering = [node for node in nodes if node.allocatable.get(resource)]
    there = sum((node.allocatable[resource] for node in offering), zero)
    free = sum((node.free[resource] for node in offering), zero)
    wants = f"the job asks for {asked}"
    if not offering:
        others = sorted({r for node in nodes for r in node.allocatable if "/" in r and not _is_storage(r)})
        has = f"they offer {', '.join(others)}" if others else "they offer no accelerator"
        yield failed(
            name,
            f"no node offers {resource}, {wants}; {has}",
            "set spec.accelerator.resourceName to what the nodes offer, install the device plugin, or leave gpus out",
        )
        return
    says = f"{resource}: {free} of {there} are free on {_count(offering)}, {wants}"
    if asked > there:
        yield failed(name, says, _NO_ROOM)
    elif asked > free:
        yield warning(name, says, "it waits until others have ended")
    else:
        yield ok(name, says)


def _is_storage(resource: str) -> bool:
    return resource.startswith(_NOT_ACCELERATORS)


def _unplaced(need: Need, nodes: Sequence[Node]) -> Check | None:
    reasons = Counter(reason for node in nodes if (reason := node.refusal(need)))
    if reasons.total() < len(nodes):
        return None
    told = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common(4))
    return failed(
        "nodes",
        f"no node takes the {need.role} pods, of {len(nodes)}: {told}",
        "set spec.accelerator.nodeSelector and tolerations, or those of the role's template, as the nodes are",
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
            "the others wait until there is room",
        )
    if not seen:
        return warning(
            name, "all pods fit if nothing else runs; what is free can't be seen", "ask for `list pods -A`"
        )
    asked = total(need.requests for need in needs for _ in range(need.count))
    return ok(name, f"all {whole} pods fit on {_count(nodes)}: they ask for {_asked(asked)}")


def _count(nodes: Sequence[Node]) -> str:
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"


def _asked(asked: Amounts) -> str:
    return all_shown({name: value for name, value in asked.items() if name != "pods"}) or "nothing"


def _counts(needs: Sequence[Need], found: dict[str, int]) -> str:
    return ", ".join(f"{found[need.role]} of {need.count} {need.role} pods" for need in needs)


def quota_checks(plan: Plan, found: JobFindings) -> list[Check]:
    """The quotas of the namespace."""
    name = "quota"
    if isinstance(found.quotas, Unread):
        return [warning(name, f"whether the namespace has a quota can't be seen: {found.quotas.reason}")]
    checks = [check for quota in found.quotas for check in _quota(quota, plan)]
    if checks:
        return checks
    names = ", ".join(quota["metadata"]["name"] for quota in found.quotas)
    return [ok(name, f"the job fits into {names}" if names else "the namespace has no quota")]


def _quota(quota: Manifest, plan: Plan) -> Iterator[Check]:
    name, called = "quota", quota["metadata"]["name"]
    if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
        yield warning(name, f"{called} counts only some pods; it is not looked at")
        return
    status = quota.get("status") or {}
    hard, used = amounts(status.get("hard")), amounts(status.get("used"))
    pods = list(map(_counted_pod, plan.pods))
    asked = _counted(plan, pods)
    for key, most in hard.items():
        left = most - used.get(key, Decimal(0))
        if asked.get(key, Decimal(0)) > left:
            wants = f"the job asks for {shown(key, asked[key])}"
            yield failed(
                name,
                f"{called} leaves {shown(key, left)} of {shown(key, most)}, {wants}",
                "ask for a larger quota, end other jobs, or ask for less",
            )
        elif any(key not in pod for pod in pods) and _must_be_set(key):
            yield warning(
                name,
                f"{called} limits {key}, so every container must set it, and not all of the job do",
                "set resources of every role, unless a LimitRange of the namespace does",
            )


def _must_be_set(key: str) -> bool:
    return key.removeprefix("requests.").removeprefix("limits.") in ("cpu", "memory")


def _counted(plan: Plan, pods: Sequence[Amounts]) -> Amounts:
    """The amounts that a plan uses of a quota, by the quota's keys. pods: the amounts of each pod."""
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
