"""The CRDs of the gang schedulers, limited to the fields that the operator writes.

scheduler-plugins v0.34.7:
https://github.com/kubernetes-sigs/scheduler-plugins/blob/v0.34.7/manifests/coscheduling/crd.yaml
Volcano v1.9.0:
https://github.com/volcano-sh/volcano/blob/v1.9.0/config/crd/volcano/bases/scheduling.volcano.sh_podgroups.yaml
"""

from __future__ import annotations

from typing import Any

_INTEGER = {"type": "integer", "format": "int32"}
_TEXT = {"type": "string"}
_NUMBER = r"(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
_QUANTITY = rf"^{_NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE]{_NUMBER}))?$"
_RESOURCES = {
    "type": "object",
    "additionalProperties": {"pattern": _QUANTITY, "x-kubernetes-int-or-string": True},
}


def _pod_groups(group: str, version: str, spec: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "apiVersion": _TEXT,
            "kind": _TEXT,
            "metadata": {"type": "object"},
            "spec": {"type": "object", "properties": spec},
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"podgroups.{group}",
            # Groups below k8s.io are the project's own: the API server wants to know who agreed to this one.
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
            },
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": "PodGroup",
                "listKind": "PodGroupList",
                "plural": "podgroups",
                "singular": "podgroup",
            },
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


COSCHEDULING = _pod_groups(
    "scheduling.x-k8s.io",
    "v1alpha1",
    {
        "minMember": {**_INTEGER, "minimum": 1},
        "minResources": _RESOURCES,
        "scheduleTimeoutSeconds": _INTEGER,
    },
)
VOLCANO = _pod_groups(
    "scheduling.volcano.sh",
    "v1beta1",
    {
        "minMember": _INTEGER,
        "minResources": _RESOURCES,
        "minTaskMember": {"type": "object", "additionalProperties": _INTEGER},
        "priorityClassName": _TEXT,
        "queue": _TEXT,
    },
)
DEFINITIONS = {
    f"{crd['spec']['group']}/{crd['spec']['versions'][0]['name']}": crd for crd in (COSCHEDULING, VOLCANO)
}


def schema_of(api_version: str) -> dict[str, Any]:
    """What a PodGroup of that version may have."""
    found: dict[str, Any] = DEFINITIONS[api_version]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found
