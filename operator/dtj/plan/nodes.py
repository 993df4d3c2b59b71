"""How a pod bears with its node."""

from __future__ import annotations

from typing import Any

from dtj.api.job import Manifest

LOST_NODE_SECONDS = 60
"""How long a pod stays on a node that has gone silent, after the control plane has noticed; Kubernetes' own 300 s are
a service's, of which other replicas go on."""
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def leaves_lost_nodes(pod: Manifest) -> Manifest:
    """The pod with tolerations by which the control plane soon gives it up with its node, unless it says itself how
    long it stays there.
    """
    tolerations = pod["spec"].get("tolerations") or []
    if not isinstance(tolerations, list):
        return pod  # left for the API server to refuse
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
        for key in _LOST
        if not any(_is_about(toleration, key) for toleration in tolerations)
    ]
    return {**pod, "spec": {**pod["spec"], "tolerations": [*tolerations, *added]}}


def _is_about(toleration: Any, key: str) -> bool:
    """As the API server decides whether a pod needs its default of 300 s: one without a key is about all taints."""
    return (
        isinstance(toleration, dict)
        and (toleration.get("key") or key) == key
        and (toleration.get("effect") or "NoExecute") == "NoExecute"
    )
