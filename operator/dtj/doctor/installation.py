"""Check the version of the cluster, the installation of dtj with its webhook, and the permissions of the user. Pure.

Also finds ConfigMaps with code that no job uses: `dtj submit` ended between the ConfigMap and the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from dtj.api.crd import custom_resource_definition
from dtj.api.identity import API_VERSION, KIND, VERSION
from dtj.api.job import Manifest
from dtj.api.spec import config_maps_of_code
from dtj.doctor.findings import Check, ClusterFindings, Permission, Taken, Unread, failed, ok, warning
from dtj.status.times import seconds_since
from dtj_trainer.contract import ENV_JOB
from dtj_trainer.contract.distribution import FORMER_NAME, NAME, install_line, version

CEL_MINOR = 25
"""The first minor version of Kubernetes 1 that enforces the CRD's validation rules (CEL)."""
_APPLY_CRD = "dtj crd | kubectl apply --server-side -f -"
_INSTALL = "install dtj with its Helm chart, or with `kubectl apply --server-side -k manifests`"
_SHOWN = 3
_MISSING = object()


def python_checks(former: str | None) -> list[Check]:
    """Check this Python: `former` is the version of an installed distribution of the former name, if there is one."""
    if former is None:
        return []
    return [
        warning(
            "Python",
            f"{FORMER_NAME} {former} is installed beside {NAME}: an older version, or another author's program",
            f"`pip uninstall --yes {FORMER_NAME}`, then `{install_line()} --force-reinstall --no-deps`",
        )
    ]


def installation_checks(findings: ClusterFindings) -> list[Check]:
    """Make the checks that need no job."""
    return [_server(findings), _crd(findings), _operator(findings), *_permissions(findings)]


def _server(findings: ClusterFindings) -> Check:
    kubernetes = findings.version.get("gitVersion", "unknown")
    message = f"Kubernetes {kubernetes} answers at {findings.server}"
    if _is_old(findings):
        return warning(
            "API server",
            f"{message}; versions before 1.{CEL_MINOR} can't refuse changes of immutable fields",
            f"update the cluster to 1.{CEL_MINOR} or newer",
        )
    return ok("API server", message)


def _is_old(findings: ClusterFindings) -> bool:
    minor = re.match(r"\d+", str(findings.version.get("minor", "")))
    return str(findings.version.get("major")) == "1" and minor is not None and int(minor[0]) < CEL_MINOR


def _crd(findings: ClusterFindings) -> Check:
    name = "CRD"
    if not findings.served:
        return failed(name, "the cluster does not serve DistributedTrainingJobs", _INSTALL)
    if isinstance(findings.crd, Unread) or findings.crd is None:
        return warning(
            name,
            f"{VERSION} is served; the CRD can't be read, so its schema is not compared",
            "ask the administrator of the cluster for the permission to get this CRD",
        )
    versions = {version["name"]: version for version in findings.crd["spec"]["versions"]}
    own_schema = custom_resource_definition()["spec"]["versions"][0]["schema"]
    cluster_schema = versions.get(VERSION, {}).get("schema", {})
    ignored = {"description"} | ({"x-kubernetes-validations", "pattern"} if _is_old(findings) else set())
    differing = sorted(set(_differences(own_schema, cluster_schema, "", ignored)))
    if differing:
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        return failed(
            name,
            f"the CRD in the cluster differs from that of dtj {version()} in {', '.join(differing[:_SHOWN])}{more}",
            f"{_APPLY_CRD}; or use the version of dtj that is installed in the cluster",
        )
    return ok(name, f"{VERSION} is served, with the schema of dtj {version()}")


def _differences(ours: Any, theirs: Any, path: str, ignored: set[str]) -> Iterator[str]:
    """Return the fields in which two schemas differ."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in ours.keys() | theirs.keys():
            # Ignore keywords only, not fields: below `properties`, the name of a field may equal a keyword.
            if key in ignored and not path.endswith("properties"):
                continue
            below = f"{path}.{key}"
            yield from _differences(ours.get(key, _MISSING), theirs.get(key, _MISSING), below, ignored)
    elif ours != theirs:
        field, _, _ = path.partition(".x-kubernetes-")
        names = re.findall(r"\.properties\.([^.]+)", field)
        yield ".".join(names) or "the root"


def _operator(findings: ClusterFindings) -> Check:
    name = "operator"
    if isinstance(findings.operators, Unread):
        return warning(
            name,
            f"the Deployments can't be read, and the operator is not checked: {findings.operators.reason}",
            "ask the administrator of the cluster",
        )
    if not findings.operators:
        return failed(name, "there is no Deployment of the operator", _INSTALL)
    ours = operators_of(findings)
    if not ours:
        others = "; ".join(
            f"{_place(each)} runs the jobs of {', '.join(_namespaces(each))}" for each in findings.operators
        )
        return failed(
            name,
            f"no operator runs the jobs of namespace {findings.namespace}: {others}",
            "use one of these namespaces, or add this one to `watchNamespaces` of the operator's chart",
        )
    if len(ours) > 1:
        places = ", ".join(_place(deployment) for deployment in ours)
        return failed(name, f"several operators would work on the same jobs: {places}", "delete all but one")
    (deployment,) = ours
    place, image = _place(deployment), _image(deployment)
    if not (deployment.get("status") or {}).get("readyReplicas"):
        namespace = deployment["metadata"]["namespace"]
        return failed(
            name,
            f"{place} ({image}) is not ready",
            f"see `kubectl -n {namespace} describe pods` and `kubectl -n {namespace} logs deployment/"
            f"{deployment['metadata']['name']}`",
        )
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    if tag.removeprefix("v") != version():
        return warning(
            name,
            f"{place} is ready; its image is {image}, but this is dtj {version()}",
            "use the version of dtj that the operator has",
        )
    return ok(name, f"{place} is ready, {image}")


def operators_of(findings: ClusterFindings) -> list[Manifest]:
    """Return the Deployments that run the jobs of the namespace; none if they can't be read."""
    if isinstance(findings.operators, Unread):
        return []
    return [
        each
        for each in findings.operators
        if findings.namespace in (_namespaces(each) or [findings.namespace])
    ]


def operator_words(deployment: Manifest) -> list[str]:
    """Return the command line of an operator."""
    return [str(word) for word in _container(deployment).get("args") or []]


def _place(deployment: Manifest) -> str:
    return f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"


def _image(deployment: Manifest) -> str:
    return str(_container(deployment)["image"])


def _namespaces(deployment: Manifest) -> list[str]:
    """Return the namespaces that the operator watches, from its flags. An empty list means all namespaces."""
    words = " ".join(operator_words(deployment))
    return re.findall(r"--namespace[= ](\S+)", words)


def _container(deployment: Manifest) -> Manifest:
    container: Manifest = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def _permissions(findings: ClusterFindings) -> Iterator[Check]:
    name, where = "permissions", f"in namespace {findings.namespace}"
    remedy = f"ask the administrator of the cluster for a Role {where}"
    denied = [permission for permission, allowed in findings.allowed.items() if not allowed]
    required = [permission for permission in denied if permission.required]
    optional = [permission for permission in denied if not permission.required]
    if required:
        yield failed(name, f"you may not {_listed(required)} {where}", remedy)
    if optional:
        purposes = ", ".join(dict.fromkeys(permission.purpose for permission in optional))
        yield warning(name, f"you may not {_listed(optional)} {where}: needed for {purposes}", remedy)
    if not denied:
        yield ok(name, f"you have all permissions that dtj needs {where}")


def _listed(permissions: list[Permission]) -> str:
    return ", ".join(map(str, permissions))


_WEBHOOK = "webhook"
_REFUSED = f"spec.env[0].name: {ENV_JOB}"


def faulty_job(namespace: str) -> Manifest:
    """Return a job with a fault that the CRD does not refuse, and the webhook does."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"generateName": "dtj-doctor-", "namespace": namespace},
        "spec": {
            "strategy": "Horovod",
            "image": "none",
            "command": ["none"],
            "env": [{"name": ENV_JOB, "value": "none"}],
            "replicaSpecs": {"worker": {"replicas": 1}},
        },
    }


def webhook_checks(findings: ClusterFindings) -> list[Check]:
    """Judge the answer to the faulty job. There is no check without a webhook, or if the user may create no jobs."""
    said = findings.faulty_job
    if said is None:
        return []
    if not isinstance(said, Taken) and _REFUSED in said:
        return [ok(_WEBHOOK, "the API server calls the webhook: a faulty job is refused")]
    port = _port(findings)
    if port is None:
        return []
    remedy = (
        f"let the API server reach port {port} of the operator's pods: docs/webhook.md lists usual obstacles"
    )
    if isinstance(said, Taken):
        return [
            failed(_WEBHOOK, "the API server does not reach the webhook, and accepts faulty jobs", remedy)
        ]
    if "failed calling webhook" in said:
        return [
            failed(
                _WEBHOOK, f"the API server does not reach the webhook, and refuses all jobs: {said}", remedy
            )
        ]
    return [
        warning(
            _WEBHOOK, f"the webhook could not be tested: a faulty job was refused for another reason: {said}"
        )
    ]


def _port(findings: ClusterFindings) -> str | None:
    """Return the port of the operator's webhook; None without a webhook, or if the Deployment can't be read."""
    for deployment in operators_of(findings):
        if found := re.search(r"--webhook-port[= ](\d+)", " ".join(operator_words(deployment))):
            return found[1]
    return None


_YOUNG_SECONDS = 300.0
"""A ConfigMap that is younger than this may belong to a running `dtj submit`, which has not created its job yet."""
_MOST_NAMES = 10


def left_code_checks(findings: ClusterFindings) -> list[Check]:
    """Return a warning that names ConfigMaps without a job; none without any, or if the user may not list them."""
    if isinstance(findings.left_code, Unread) or not findings.left_code:
        return []
    count, shown = len(findings.left_code), findings.left_code[:_MOST_NAMES]
    more = f" and {count - _MOST_NAMES} more" if count > _MOST_NAMES else ""
    what = "1 ConfigMap has" if count == 1 else f"{count} ConfigMaps have"
    return [
        warning(
            "code",
            f"{what} code that no job uses: {', '.join(shown)}{more}",
            f"kubectl -n {findings.namespace} delete configmap {' '.join(shown)}",
        )
    ]


def left_over(config_maps: Iterable[Manifest], jobs: Iterable[Manifest], now: datetime) -> list[str]:
    """Return the names of ConfigMaps without an owner that no job uses.

    config_maps: those with LABEL_CODE. Kubernetes deletes the ones with an owner.
    """
    used = {name for job in jobs for name in config_maps_of_code(job)}
    return sorted(
        metadata["name"]
        for metadata in (each["metadata"] for each in config_maps)
        if not metadata.get("ownerReferences")
        and metadata["name"] not in used
        and seconds_since(metadata["creationTimestamp"], now) > _YOUNG_SECONDS
    )
