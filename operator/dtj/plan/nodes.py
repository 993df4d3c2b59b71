"""Which nodes a pod avoids, and how long it stays on one that is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtj.api.job import Manifest
from dtj.plan.merge import merged

LOST_NODE_SECONDS = 60
"""How long a pod stays on a node that has gone silent, after the control plane has noticed; Kubernetes' own 300 s are
a service's, of which other replicas go on."""
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
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


def avoids(pod: Manifest, nodes: Sequence[str]) -> Manifest:
    """The pod, which goes to none of these nodes while another one takes it; the affinity that it has stays.

    Preferred, not required: a job must not wait for ever where there is no other node, or none that is free.
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
    """As the API server decides whether a pod needs its default of 300 s: one without a key is about all taints."""
    return (
        isinstance(toleration, dict)
        and (toleration.get("key") or key) == key
        and (toleration.get("effect") or "NoExecute") == "NoExecute"
    )
