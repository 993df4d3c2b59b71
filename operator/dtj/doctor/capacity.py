"""Check whether the pods of a job fit on the nodes and into the quotas of the namespace. Pure.

The checks use what the scheduler uses: the pods that a node accepts, and the free resources of the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from dtj.api.identity import LABEL_JOB, LABEL_ROLE
from dtj.api.job import Job, Manifest
from dtj.api.quantities import Amounts, all_shown, amounts, pod_limits, pod_requests, shown, total
from dtj.doctor.findings import Check, JobFindings, Unread, Verdict, failed, ok, warning
from dtj.plan.model import Plan

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Need:
    """The requirements of the pods of a role. All pods of a role have the same requirements."""

    role: str
    count: int
    requests: Amounts
    """The requests of each pod."""
    selector: Mapping[str, str]
    tolerations: Sequence[Manifest]


@dataclass(frozen=True)
class NodeCapacity:
    """A node with its resources."""

    manifest: Manifest
    allocatable: Amounts
    free: Amounts

    @property
    def name(self) -> str:
        """The node's name."""
        return str(self.manifest["metadata"]["name"])

    def refusal(self, need: Need) -> str | None:
        """Return why the node rejects such a pod, whatever resources are free; None if the node accepts the pod.

        Affinity is not checked.
        """
        conditions = {c["type"]: c["status"] for c in self.manifest["status"].get("conditions") or []}
        if conditions.get("Ready") != "True":
            return "is not ready"
        labels = self.manifest["metadata"].get("labels") or {}
        for key, value in need.selector.items():
            if labels.get(key) != value:
                return f"lacks the label {key}={value}"
        for taint in self.manifest["spec"].get("taints") or []:
            if taint["effect"] != "PreferNoSchedule" and not any(
                _tolerates(t, taint) for t in need.tolerations
            ):
                value = f"={taint['value']}" if taint.get("value") else ""
                return f"has the taint {taint['key']}{value}:{taint['effect']}"
        return "is cordoned" if self.manifest["spec"].get("unschedulable") else None


def needs_of(pods: Iterable[Manifest]) -> list[Need]:
    """Return the requirements of the pods of a plan, by role."""
    by_role: dict[str, list[Manifest]] = {}
    for pod in pods:
        by_role.setdefault(pod["metadata"]["labels"][LABEL_ROLE], []).append(pod)
    return [
        Need(
            role,
            len(of_role),
            pod_requests(of_role[0]),
            of_role[0]["spec"].get("nodeSelector") or {},
            of_role[0]["spec"].get("tolerations") or [],
        )
        for role, of_role in by_role.items()
    ]


def read_nodes(manifests: Iterable[Manifest], pods: Iterable[Manifest], job: Job) -> list[NodeCapacity]:
    """Return the nodes with their free resources. Pods of the job use no resources, because new pods replace them."""
    used: dict[str, list[Amounts]] = {}
    for pod in pods:
        metadata = pod["metadata"]
        own = (metadata["namespace"], (metadata.get("labels") or {}).get(LABEL_JOB)) == (
            job.namespace,
            job.name,
        )
        node = pod["spec"].get("nodeName")
        if node and not own and (pod.get("status") or {}).get("phase") not in _ENDED:
            used.setdefault(node, []).append(pod_requests(pod))
    nodes = []
    for manifest in manifests:
        allocatable = amounts(manifest["status"].get("allocatable"))
        requested = total(used.get(manifest["metadata"]["name"], []))
        free = {name: value - requested.get(name, Decimal(0)) for name, value in allocatable.items()}
        nodes.append(NodeCapacity(manifest, allocatable, free))
    return nodes


def placed(
    needs: Sequence[Need], nodes: Sequence[NodeCapacity], capacity: Mapping[str, Amounts]
) -> dict[str, int]:
    """Return how many pods of each role fit, placing the largest pods first. capacity: the amounts by node name."""
    left = {name: dict(values) for name, values in capacity.items()}
    fitting = dict.fromkeys((need.role for need in needs), 0)
    for need in sorted(needs, key=_size, reverse=True):
        for node in nodes:
            if fitting[need.role] == need.count:
                break
            if node.refusal(need):
                continue
            here = min(need.count - fitting[need.role], _times(need.requests, left[node.name]))
            fitting[need.role] += here
            for name, value in need.requests.items():
                left[node.name][name] = left[node.name].get(name, Decimal(0)) - here * value
    return fitting


def lacking(need: Need, capacity: Amounts) -> Amounts:
    """Return the requests of a pod that exceed the capacity."""
    return {name: value for name, value in need.requests.items() if value > capacity.get(name, Decimal(0))}


def _times(requests: Amounts, free: Amounts) -> int:
    return max(
        0, min(int(free.get(name, Decimal(0)) // value) for name, value in requests.items() if value > 0)
    )


def _size(need: Need) -> tuple[bool, Decimal, Decimal]:
    extended = any("/" in name for name in need.requests)
    return extended, need.requests.get("memory", Decimal(0)), need.requests.get("cpu", Decimal(0))


def _tolerates(toleration: Manifest, taint: Manifest) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value") or "") == (taint["key"], taint.get("value") or "")


_NOT_ACCELERATORS = ("hugepages-", "attachable-volumes-")
_NO_ROOM = "add nodes, or request less; if the cluster has an autoscaler, you can submit the job anyway"


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
    """Yield a warning for devices of Dynamic Resource Allocation, which a node does not list among its resources."""
    roles = sorted(
        {pod["metadata"]["labels"][LABEL_ROLE] for pod in plan.pods if pod["spec"].get("resourceClaims")}
    )
    if roles:
        yield warning(
            "devices",
            f"the {' and '.join(roles)} pods ask for devices by resourceClaims: their fit is not checked",
            "kubectl get deviceclasses,resourceslices",
        )


def _accelerator(resource: str, needs: Sequence[Need], nodes: Sequence[NodeCapacity]) -> Iterator[Check]:
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


def _unplaced(need: Need, nodes: Sequence[NodeCapacity]) -> Check | None:
    reasons = Counter(reason for node in nodes if (reason := node.refusal(need)))
    if reasons.total() < len(nodes):
        return None
    counts = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common(4))
    return failed(
        "nodes",
        f"none of {len(nodes)} nodes takes the {need.role} pods: {counts}",
        "set spec.accelerator.nodeSelector and tolerations, or those of the role's template, to match the nodes",
    )


def _fit(needs: Sequence[Need], nodes: Sequence[NodeCapacity], *, seen: bool) -> Check:
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
            f"only {_counts(needs, now)} fit into the resources that are free now",
            "the other pods wait until resources are free",
        )
    if not seen:
        return warning(
            name,
            "all pods fit if nothing else runs; pods of other namespaces can't be read",
            "ask the administrator of the cluster for the permission to list pods in all namespaces",
        )
    requested = total(need.requests for need in needs for _ in range(need.count))
    return ok(name, f"all {whole} pods fit on {_count(nodes)}: they ask for {_shown_requests(requested)}")


def _count(nodes: Sequence[NodeCapacity]) -> str:
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"


def _shown_requests(requested: Amounts) -> str:
    return all_shown({name: value for name, value in requested.items() if name != "pods"}) or "nothing"


def _counts(needs: Sequence[Need], fitting: dict[str, int]) -> str:
    return ", ".join(f"{fitting[need.role]} of {need.count} {need.role} pods" for need in needs)


def quota_checks(plan: Plan, findings: JobFindings) -> list[Check]:
    """Check the quotas of the namespace."""
    name = "quota"
    if isinstance(findings.quotas, Unread):
        return [warning(name, f"the ResourceQuotas of the namespace can't be read: {findings.quotas.reason}")]
    checks = [check for quota in findings.quotas for check in _quota(quota, plan)]
    if checks:
        return checks
    names = ", ".join(quota["metadata"]["name"] for quota in findings.quotas)
    return [
        ok(
            name,
            f"the job fits into ResourceQuota {names}" if names else "the namespace has no ResourceQuota",
        )
    ]


def _quota(quota: Manifest, plan: Plan) -> Iterator[Check]:
    name, quota_name = "quota", quota["metadata"]["name"]
    if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
        yield warning(name, f"ResourceQuota {quota_name} has a scope and is not checked")
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
                f"ResourceQuota {quota_name} leaves {shown(key, left)} of {shown(key, limit)}, {request}",
                "ask for a larger quota, end other jobs, or request less",
            )
        elif any(key not in pod for pod in pods) and _must_be_set(key):
            yield warning(
                name,
                f"ResourceQuota {quota_name} limits {key}, so every container must set {key}, and not all containers "
                "of the job do",
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
