"""Paths of the Kubernetes API for the kinds that dtj uses."""

from __future__ import annotations

from urllib.parse import quote

from dtj.api.identity import API_VERSION, GROUP, KIND, PLURAL, VERSION
from dtj.api.job import Manifest
from dtj.api.mpijob import MPIJOB_API_VERSION, MPIJOB_KIND, MPIJOB_PLURAL
from dtj.cluster.interface import ApiError, Selection

_PLURALS = {
    ("v1", "Pod"): "pods",
    ("v1", "Service"): "services",
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Secret"): "secrets",
    ("v1", "Event"): "events",
    ("apps/v1", "Deployment"): "deployments",
    ("coordination.k8s.io/v1", "Lease"): "leases",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"): "validatingwebhookconfigurations",
    ("scheduling.x-k8s.io/v1alpha1", "PodGroup"): "podgroups",
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): "podgroups",
    (API_VERSION, KIND): PLURAL,
    (MPIJOB_API_VERSION, MPIJOB_KIND): MPIJOB_PLURAL,
}


def object_path(manifest: Manifest) -> str:
    """Return the path of one object."""
    return f"{collection_path(manifest)}/{segment(manifest['metadata']['name'])}"


def collection_path(manifest: Manifest) -> str:
    """Return the path of all objects of the manifest's kind in its namespace."""
    return _path(manifest["apiVersion"], manifest["kind"], manifest["metadata"].get("namespace"))


def selection_path(selection: Selection) -> str:
    """Return the path of the kind and namespace of a selection; its labels go into the query."""
    return _path(selection.api_version, selection.kind, selection.namespace)


def job_path(namespace: str, name: str) -> str:
    """Return the path of a DistributedTrainingJob."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{segment(namespace)}/{PLURAL}/{segment(name)}"


def segment(name: str) -> str:
    """Return a name of an object or a namespace as one segment of a path.

    Raises ApiError 404 for an empty name, `.` and `..`, which no object has. A client would remove such a segment
    from the path: `DELETE …/jobs/.` would delete all jobs of the namespace.
    """
    if name.strip() in ("", ".", ".."):
        raise ApiError(404, "NotFound", f'"{name}" not found')
    return quote(name, safe="")


def _path(version: str, kind: str, namespace: str | None) -> str:
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    plural = _PLURALS[version, kind]
    return f"{root}/{plural}" if namespace is None else f"{root}/namespaces/{segment(namespace)}/{plural}"
