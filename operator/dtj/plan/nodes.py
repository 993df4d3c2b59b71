"""Which nodes a pod avoids, and how long a pod stays bound to an unreachable node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtj.api.job import Manifest
from dtj.plan.merge import merged

LOST_NODE_SECONDS = 60
"""Seconds that a pod stays bound to an unreachable node after the control plane marked the node. Kubernetes' default
of 300 s suits services with several replicas; a training stands still while one pod is missing."""
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def with_node_tolerations(pod: Manifest) -> Manifest:
    """Add tolerations that make the control plane evict the pod soon from an unreachable node. Tolerations of the
    template for the same taint stay.
    """
    tolerations = pod["spec"].get("tolerations") or []
    if not isinstance(tolerations, list):
        return pod  # The API server refuses a pod whose tolerations are not a list.
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
        for key in _LOST
        if not any(_is_about(toleration, key) for toleration in tolerations)
    ]
    return {**pod, "spec": {**pod["spec"], "tolerations": [*tolerations, *added]}}


def with_avoided_nodes(pod: Manifest, nodes: Sequence[str]) -> Manifest:
    """Add a preference against these nodes to the pod; other affinity stays.

    The node affinity is preferred, not required: a job must not wait forever where no other node is free.
    """
    if not nodes:
        return pod
    elsewhere = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [*nodes]}
    term = {"weight": 100, "preference": {"matchExpressions": [elsewhere]}}
    own: Any = pod["spec"]
    for field in ("affinity", "nodeAffinity", _PREFERRED):
        own = own.get(field) if isinstance(own, dict) else None
    terms = [*(own if isinstance(own, list) else []), term]
    spec: Manifest = merged(pod["spec"], {"affinity": {"nodeAffinity": {_PREFERRED: terms}}})
    return {**pod, "spec": spec}


def _is_about(toleration: Any, key: str) -> bool:
    """Match as the API server does for its default of 300 s: a toleration without a key matches all taints."""
    return (
        isinstance(toleration, dict)
        and (toleration.get("key") or key) == key
        and (toleration.get("effect") or "NoExecute") == "NoExecute"
    )
