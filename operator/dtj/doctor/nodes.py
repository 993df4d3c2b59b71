"""Nodes as the scheduler sees them: which pods they accept, and which resources are free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from dtj.api.identity import LABEL_JOB, LABEL_ROLE
from dtj.api.job import Job, Manifest
from dtj.api.quantities import Amounts, amounts, pod_requests, total

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
class Node:
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


def read_nodes(manifests: Iterable[Manifest], pods: Iterable[Manifest], job: Job) -> list[Node]:
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
        nodes.append(Node(manifest, allocatable, free))
    return nodes


def placed(needs: Sequence[Need], nodes: Sequence[Node], capacity: Mapping[str, Amounts]) -> dict[str, int]:
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
