"""A job's own TensorBoard: a Deployment with one pod, and its Service.

TensorBoard is not a replica of the training: it reads the bucket, and is deleted with the job, not with the job's
pods.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dtj.api.identity import GROUP, LABEL_MANAGED_BY, LABEL_TENSORBOARD, MANAGER, own_image
from dtj.api.job import Job, Manifest
from dtj.api.names import tensorboard_name
from dtj.api.pod_template import TENSORBOARD_CONTAINER
from dtj.plan.merge import merged
from dtj.plan.model import TensorBoard
from dtj.plan.pods import credentials, metadata, pod_security, with_node_tolerations, with_restricted_security
from dtj.plan.template_fields import metadata_of_templates, resources_like_replicas, spec_of_templates
from dtj_trainer import contract

DEFAULT_IMAGE = own_image("dtj-tensorboard")
ANNOTATION_DIGEST = f"{GROUP}/spec-digest"
"""A digest of the Deployment's spec. The stored spec can't be compared, because the API server adds defaults."""
OFF = "off"
"""The value in place of a digest on a Deployment that was scaled to 0 replicas."""
_DEFAULT_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
_OTHERWISE = {"requests": {"ephemeral-storage": "50Mi"}, "limits": {"cpu": "1", "ephemeral-storage": "11Gi"}}
# Event files are small. The limit keeps a job that writes more from filling its node's disk.
_FILES_LIMIT = "10Gi"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def tensorboard(job: Job, default_image: str) -> TensorBoard | None:
    """Return the TensorBoard of a job without faults, if the job asks for one."""
    if not job.spec.tensorboard.enabled:
        return None
    name, selector = tensorboard_name(job.name), {LABEL_TENSORBOARD: job.name}
    spec = {
        "replicas": 1,
        "revisionHistoryLimit": 0,
        # Delete the old pod before the new pod is created: two pods at a time may exceed a quota.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector},
        "template": _template(job, default_image),
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    return TensorBoard(
        service={
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(job, name),
            "spec": {
                "selector": selector,
                "ports": [{"name": "http", "port": contract.TENSORBOARD_PORT, "targetPort": "http"}],
            },
        },
        deployment={
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {**metadata(job, name), "annotations": {ANNOTATION_DIGEST: digest}},
            "spec": spec,
        },
    )


def turned_off(job: Job) -> Manifest:
    """Return the patch that scales the Deployment to 0 replicas while the job needs no TensorBoard."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": tensorboard_name(job.name),
            "namespace": job.namespace,
            "annotations": {ANNOTATION_DIGEST: OFF},
        },
        "spec": {"replicas": 0},
    }


def tensorboard_url(job: Job) -> str:
    """Return TensorBoard's URL within the cluster, valid for any cluster domain."""
    return f"http://{tensorboard_name(job.name)}.{job.namespace}.svc:{contract.TENSORBOARD_PORT}"


def _template(job: Job, default_image: str) -> Manifest:
    taken = metadata_of_templates(job)
    template: Manifest = {
        # Without LABEL_JOB, so that the pod does not count as a pod of the job and is not behind the job's Service.
        "metadata": {
            **taken,
            "labels": {
                **taken.get("labels", {}),
                "app.kubernetes.io/name": "dtj-tensorboard",
                LABEL_MANAGED_BY: MANAGER,
                LABEL_TENSORBOARD: job.name,
            },
        },
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 10,
            "securityContext": pod_security(job.pod_user),
            "containers": [_container(job, default_image)],
            "volumes": [
                {"name": "files", "emptyDir": {"sizeLimit": _FILES_LIMIT}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "100Mi"}},
            ],
            **spec_of_templates(job, beside_gpus=False),
            **service_account(job),
        },
    }
    return with_node_tolerations(with_restricted_security(merged(template, job.spec.tensorboard.template)))


def _container(job: Job, default_image: str) -> Manifest:
    asked = job.spec.tensorboard.resources.model_dump(exclude_defaults=True)
    env = {contract.ENV_JOB: job.name, contract.ENV_ARTIFACTS_URI: job.artifacts_uri or ""}
    if job.spec.artifacts and job.spec.artifacts.endpoint:
        env["AWS_ENDPOINT_URL_S3"] = job.spec.artifacts.endpoint
    probe = {"httpGet": {"path": "/", "port": "http"}, "timeoutSeconds": 10}
    return {
        "name": TENSORBOARD_CONTAINER,
        "image": job.spec.tensorboard.image or default_image,
        "env": [*({"name": name, "value": value} for name, value in env.items()), *bucket_variables(job)],
        "ports": [{"name": "http", "containerPort": contract.TENSORBOARD_PORT}],
        "readinessProbe": {**probe, "periodSeconds": 2},
        "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 6},
        "resources": asked or resources_like_replicas(job, _DEFAULT_RESOURCES, _OTHERWISE),
        "securityContext": {"readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "files", "mountPath": str(contract.ROOT)},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a mount point, not a file of ours
        ],
        **credentials(job),
    }


def bucket_variables(job: Job) -> list[dict[str, Any]]:
    """Select the variables of the replicas that access to the bucket may need: AWS, S3 settings, proxies."""
    return [
        variable.model_dump(by_alias=True, exclude_none=True)
        for variable in job.spec.env
        if variable.name.startswith("AWS_")
        or variable.name in contract.S3_SETTINGS
        or variable.name.upper() in _PROXIES
    ]


def service_account(job: Job) -> Manifest:
    """Use the replicas' service account, if the bucket is accessed with its role (IRSA, Pod Identity)."""
    if job.spec.artifacts is None or job.spec.artifacts.secret_name:
        return {}
    # A job with an invalid template also gets a record pod, so the spec in the template may be no object.
    specs = (replica.template.get("spec") for replica in job.spec.replica_specs.with_pods().values())
    names = (spec.get("serviceAccountName") for spec in specs if isinstance(spec, dict))
    return next(({"serviceAccountName": name} for name in names if name), {})
