"""The objects of a server of trained models, which `dtj serve --manifest` prints and its user applies.

They belong to no job: a server outlives the training and its TTL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dtj.api.base import OBJECT_NAME
from dtj.api.identity import own_image
from dtj.api.job import POD_USER, Manifest
from dtj.api.names import LABEL_LENGTH, is_dns_label, is_namespace
from dtj.api.quantities import amount
from dtj.api.spec import HTTP_URL, S3_URI
from dtj.api.validation import IMAGE_REFERENCE
from dtj.plan.pods import ON_LINUX, pod_security, with_restricted_security

IMAGE = "dtj-serve"
CONTAINER = "serve"
KSERVE_CONTAINER = "kserve-container"
"""The name by which KServe knows a predictor's container."""
_LIVE, _READY = "/v2/health/live", "/v2/health/ready"
_GRACE_SECONDS = 60
# The seconds that a deleted server continues, until kube-proxy of each node has removed the pod from the Service.
_LEAVING_SECONDS = 10


@dataclass(frozen=True)
class ModelServer:
    """A server of models. `models`: URIs by name. `options`: its options. `cpus`: also the default of --threads.

    `secret`: with the variables of S3, and DTJ_SERVE_TOKEN for a bearer token.
    """

    name: str
    models: Mapping[str, str]
    image: str = own_image(IMAGE)
    namespace: str | None = None
    replicas: int = 2
    cpus: int = 1
    memory: str = "2Gi"
    port: int = 8080
    options: tuple[str, ...] = field(default=())
    secret: str | None = None
    endpoint: str | None = None
    service_account: str | None = None


def default_name(models: Mapping[str, str]) -> str:
    """Return a name made of the first model's name. With the suffix, it differs from the Service of a job of that
    name.
    """
    return f"{next(iter(models))}-serve"


def faults(server: ModelServer) -> Iterator[str]:
    """Yield a message for each invalid option, which says what would be right."""
    if not (is_dns_label(server.name) and len(server.name) <= LABEL_LENGTH):
        yield (
            f"--name {server.name!r} has to begin with a letter, and to consist of at most {LABEL_LENGTH} lower-case "
            "letters, digits and '-'"
        )
    for name, uri in server.models.items():
        if not re.fullmatch(S3_URI, uri):
            yield f"{name}={uri} has to be s3://bucket/prefix: a pod can't read a folder of this machine"
    if server.namespace is not None and not is_namespace(server.namespace):
        yield f"--namespace {server.namespace!r} is not the name of a namespace"
    if not IMAGE_REFERENCE.fullmatch(server.image):
        yield f"--image {server.image!r} is not an image reference such as registry/dtj-serve:tag"
    if not _is_above_zero(server.memory):
        yield f"--memory {server.memory!r} has to be a quantity such as 2Gi"
    if not 1 <= server.port <= 65535:
        yield f"--port {server.port} has to be between 1 and 65535: a Service needs a port that is known in advance"
    if server.endpoint is not None and not re.fullmatch(HTTP_URL, server.endpoint):
        yield f"--endpoint {server.endpoint!r} has to be a URL such as https://s3.example.com"
    for option, object_name in (("secret", server.secret), ("service-account", server.service_account)):
        if object_name is not None and not (
            len(object_name) <= 253 and re.fullmatch(OBJECT_NAME, object_name)
        ):
            yield f"--{option} {object_name!r} has to be lower-case letters, digits, '-' and '.'"


def _is_above_zero(quantity: str) -> bool:
    try:
        return amount(quantity) > 0
    except ValueError:
        return False


def objects(server: ModelServer) -> tuple[Manifest, ...]:
    """Return Deployment, Service and PodDisruptionBudget of a server without faults."""
    return deployment(server), service(server), disruption_budget(server)


def deployment(server: ModelServer) -> Manifest:
    """Return the Deployment. A new version gets requests before an older pod ends."""
    pod = {
        "metadata": {"labels": _labels(server)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _GRACE_SECONDS + _LEAVING_SECONDS,
            "securityContext": pod_security(),
            "nodeSelector": dict(ON_LINUX),
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": _labels(server)},
                }
            ],
            "containers": [
                {
                    "name": CONTAINER,
                    **_container(server),
                    "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_LEAVING_SECONDS)]}}},
                }
            ],
            **_service_account(server),
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(server),
        "spec": {
            "replicas": server.replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": _labels(server)},
            "template": with_restricted_security(pod),
        },
    }


def service(server: ModelServer) -> Manifest:
    """Return the Service, which is reachable only within the cluster."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(server),
        "spec": {
            "selector": _labels(server),
            "ports": [{"name": "http", "port": server.port, "targetPort": server.port}],
        },
    }


def disruption_budget(server: ModelServer) -> Manifest:
    """Return the PodDisruptionBudget. It never blocks the drain of a node: one pod may always go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(server),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _labels(server)}},
    }


def inference_service(server: ModelServer) -> Manifest:
    """Return KServe's InferenceService with a custom predictor container.

    https://kserve.github.io/website/docs/model-serving/predictive-inference/frameworks/custom-predictor. The object
    has only fields that Knative Serving accepts too, since KServe may run predictors by Knative: the security context
    is that of the container, and the container has no preStop hook.
    """
    container: Manifest = {"name": KSERVE_CONTAINER, **_container(server)}
    user = {"runAsNonRoot": True, "runAsUser": POD_USER, "runAsGroup": POD_USER}
    profile = {"seccompProfile": {"type": "RuntimeDefault"}}
    container["securityContext"] = {**container["securityContext"], **user, **profile}
    predictor = with_restricted_security(
        {
            "spec": {
                "minReplicas": server.replicas,
                "maxReplicas": server.replicas,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "containers": [container],
                **_service_account(server),
            }
        }
    )["spec"]
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": _metadata(server),
        "spec": {"predictor": predictor},
    }


def _metadata(server: ModelServer) -> Manifest:
    place = {} if server.namespace is None else {"namespace": server.namespace}
    return {"name": server.name, **place, "labels": _labels(server)}


def _labels(server: ModelServer) -> dict[str, str]:
    return {"app.kubernetes.io/name": "dtj-serve", "app.kubernetes.io/instance": server.name}


def _container(server: ModelServer) -> Manifest:
    made: dict[str, Any] = {
        "image": server.image,
        "args": [
            "--host=::",
            f"--port={server.port}",
            *server.options,
            "--",
            *(f"{name}={uri}" for name, uri in server.models.items()),
        ],
        "ports": [{"containerPort": server.port, "protocol": "TCP"}],
        # The server answers only after it has loaded its models, which may take minutes.
        "startupProbe": {**_probe(server, _READY), "periodSeconds": 2, "failureThreshold": 300},
        "readinessProbe": {**_probe(server, _READY), "periodSeconds": 5},
        "livenessProbe": {**_probe(server, _LIVE), "periodSeconds": 20, "failureThreshold": 6},
        "resources": {
            "requests": {"cpu": str(server.cpus), "memory": server.memory},
            "limits": {"memory": server.memory},
        },
        "securityContext": {"readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if server.secret is not None:
        made["envFrom"] = [{"secretRef": {"name": server.secret}}]
    if server.endpoint is not None:
        made["env"] = [{"name": "AWS_ENDPOINT_URL_S3", "value": server.endpoint}]
    return made


def _probe(server: ModelServer, path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": server.port}, "timeoutSeconds": 10}


def _service_account(server: ModelServer) -> Manifest:
    return {} if server.service_account is None else {"serviceAccountName": server.service_account}
