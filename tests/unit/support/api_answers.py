"""Answers of an API server that do not depend on its objects: refusals, and which resources the API server serves."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from dtj.api.identity import API_VERSION, GROUP, KIND, PLURAL, VERSION
from dtj.api.job import Manifest
from dtj.api.mpijob import MPIJOB_API_VERSION, MPIJOB_KIND, MPIJOB_PLURAL

RESOURCES: dict[str, dict[str, str]] = {
    "/api/v1": {
        "namespaces": "Namespace",
        "pods": "Pod",
        "services": "Service",
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "events": "Event",
    },
    f"/apis/{API_VERSION}": {PLURAL: KIND},
    f"/apis/{MPIJOB_API_VERSION}": {MPIJOB_PLURAL: MPIJOB_KIND},
    "/apis/apps/v1": {"deployments": "Deployment"},
    "/apis/coordination.k8s.io/v1": {"leases": "Lease"},
    "/apis/networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "/apis/scheduling.x-k8s.io/v1alpha1": {"podgroups": "PodGroup"},
    "/apis/scheduling.volcano.sh/v1beta1": {"podgroups": "PodGroup"},
    "/apis/admissionregistration.k8s.io/v1": {
        "validatingwebhookconfigurations": "ValidatingWebhookConfiguration"
    },
}
"""Kinds by group version and plural."""
KINDS = {plural: kind for kinds in RESOURCES.values() for plural, kind in kinds.items()}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def refused(status: int, reason: str, message: str, details: Manifest | None = None) -> web.Response:
    """A Status, as in every refusal of the API server."""
    content = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details or {},
        "code": status,
    }
    return web.json_response(content, status=status)


def _group(name: str, version: str) -> Manifest:
    known = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [known], "preferredVersion": known}


def _resources(version: str, kinds: Mapping[str, str]) -> Manifest:
    entries = [
        {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": _VERBS}
        for plural, kind in kinds.items()
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": entries}


_EXTENSIONS = "apiextensions.k8s.io"
# kopf asks for namespaces and CustomResourceDefinitions, although kopf watches neither in the tests.
DISCOVERY: dict[str, Manifest] = {
    "/version": {"major": "1", "minor": "30"},
    "/api": {"versions": ["v1"]},
    "/apis": {"groups": [_group(GROUP, VERSION), _group("apps", "v1"), _group(_EXTENSIONS, "v1")]},
    f"/apis/{_EXTENSIONS}/v1": _resources(
        f"{_EXTENSIONS}/v1", {"customresourcedefinitions": "CustomResourceDefinition"}
    ),
    **{
        root: _resources(root.removeprefix("/apis/").removeprefix("/api/"), RESOURCES[root])
        for root in ("/api/v1", "/apis/apps/v1", f"/apis/{API_VERSION}", f"/apis/{MPIJOB_API_VERSION}")
    },
}


def discovered(path: str, *, installed: bool) -> Manifest:
    """The answer of discovery. installed: whether the API server knows the resource DistributedTrainingJob."""
    known = DISCOVERY[path]
    if path == "/apis" and not installed:
        return {"groups": [group for group in known["groups"] if group["name"] != GROUP]}
    return known
