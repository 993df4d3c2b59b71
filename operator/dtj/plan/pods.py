"""What the pods of every strategy have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtj.api.identity import (
    API_VERSION,
    KIND,
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB,
    LABEL_MANAGED_BY,
    LABEL_ROLE,
    MANAGER,
)
from dtj.api.job import POD_USER, Job, Manifest
from dtj.api.names import config_name, host_of, pod_name, service_name
from dtj.api.pod_template import CONFIG_VOLUME, RUN_VOLUME, SHM_VOLUME, TRAINER_CONTAINER, WORKSPACE_VOLUME
from dtj.api.spec import ReplicaSpec, Resume
from dtj.plan.code import code_environment, code_pod_spec
from dtj.plan.data_cache import cache_environment, cache_pod_spec
from dtj.plan.history import history_environment
from dtj.plan.merge import merged
from dtj.plan.model import Replica
from dtj.plan.nodes import with_avoided_nodes, with_node_tolerations
from dtj.plan.tracking import tracking_credentials, tracking_environment
from dtj_trainer import contract

# With NVIDIA's container runtime as the node's default, a replica without GPUs would otherwise see all of them.
HIDDEN_GPUS = {"NVIDIA_VISIBLE_DEVICES": "void"}
ON_LINUX = {"kubernetes.io/os": "linux"}
"""A node selector: a cluster may have Windows nodes, and no taint keeps pods from these nodes by default."""


def metadata(job: Job, name: str, labels: dict[str, str] | None = None) -> Manifest:
    """Return metadata of an object of the job. Its labels identify it, and Kubernetes deletes it with the job."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {LABEL_MANAGED_BY: MANAGER, LABEL_JOB: job.name, **(labels or {})},
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": job.name,
                "uid": job.uid,
                "controller": True,
                # `kubectl delete --cascade=foreground` waits for objects with this flag.
                "blockOwnerDeletion": True,
            }
        ],
    }


def headless_service(job: Job) -> Manifest:
    """Return the Service that gives every pod a DNS name, also before the pod is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, service_name(job.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_MANAGED_BY: MANAGER, LABEL_JOB: job.name},
        },
    }


def replicas(
    job: Job, role: str, count: int, attempt: int, apart: Mapping[str, int] | None = None
) -> tuple[Replica, ...]:
    """Return the pods of a role in an attempt. apart: other attempts, by `<role>-<index>`."""
    apart = apart or {}
    return tuple(
        Replica(pod_name(job.name, role, index), role, index, apart.get(f"{role}-{index}", attempt))
        for index in range(count)
    )


def restoring_peers(job: Job, pods: Mapping[str, int]) -> contract.Peers | None:
    """Return how the pods that restore the same checkpoint reach each other; None if no pod has another one to ask.

    pods: their number by role. They start together: none waits for one that is created later.
    """
    if job.spec.artifacts is None or sum(pods.values()) < 2:
        return None
    return contract.Peers(host_of(job.name, job.namespace, contract.Peers.POD), pods)


def trainer_container(pod: Manifest) -> Manifest:
    """Return the container of a pod, or of a pod template, that runs the training."""
    container: Manifest = next(c for c in pod["spec"]["containers"] if c["name"] == TRAINER_CONTAINER)
    return container


def replica_pod(
    job: Job,
    replica: Replica,
    spec: ReplicaSpec,
    info: contract.PodInfo,
    *,
    command: list[str],
    env: dict[str, str],
    extra: Manifest,
) -> Manifest:
    """Return one pod: the common base, with the strategy's `extra` pod spec and the user's template merged over it.

    info: what the trainer in the pod needs to know of the strategy.
    """
    given = _environment(job, replica) | {contract.ENV_POD: info.to_json()} | _accelerators(job, spec)
    cached = info.reads_data
    given |= (cache_environment(job) if cached else {}) | tracking_environment(job, info) | env
    given |= code_environment(job, cached=cached)
    given |= history_environment(job) if info.uploads == "primary" else {}
    labels = {
        LABEL_ROLE: replica.role,
        LABEL_INDEX: str(replica.index),
        LABEL_ATTEMPT: str(replica.attempt),
    }
    base: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(job, replica.name, labels),
        "spec": {
            "hostname": replica.name,
            "subdomain": service_name(job.name),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": contract.TERMINATION_GRACE_SECONDS,
            "securityContext": pod_security(job.pod_user),
            "nodeSelector": dict(ON_LINUX),
            "containers": [_container(job, spec, command, given) | _credentials(job, info)],
            "volumes": [
                {"name": WORKSPACE_VOLUME, "emptyDir": {}},
                {"name": RUN_VOLUME, "emptyDir": {"medium": "Memory"}},
                {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory"}},
                {"name": CONFIG_VOLUME, "configMap": {"name": config_name(job.name)}},
            ],
            **_placement(job, spec),
        },
    }
    with_cache = merged(base, {"spec": cache_pod_spec(job)}) if cached else base
    with_code = merged(with_cache, {"spec": code_pod_spec(job)}) if job.spec.code else with_cache
    pod: Manifest = merged(merged(with_code, {"spec": extra}), spec.template)
    nodes = job.spec.run_policy.avoided_nodes(job.status.node_failures)
    return with_avoided_nodes(with_node_tolerations(with_restricted_security(pod)), nodes)


def _container(job: Job, replica: ReplicaSpec, command: list[str], env: dict[str, str]) -> Manifest:
    container: Manifest = {
        "name": TRAINER_CONTAINER,
        "image": job.spec.image,
        "command": command,
        "env": [
            *({"name": name, "value": value} for name, value in env.items()),
            *(variable.model_dump(by_alias=True, exclude_none=True) for variable in job.spec.env),
        ],
        "resources": _resources(job, replica),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": WORKSPACE_VOLUME, "mountPath": str(contract.ROOT)},
            {"name": RUN_VOLUME, "mountPath": str(contract.ROOT / contract.RUN)},
            {"name": SHM_VOLUME, "mountPath": "/dev/shm"},  # noqa: S108 - a mount point, not a file of ours
            {"name": CONFIG_VOLUME, "mountPath": str(contract.CONFIG_DIR), "readOnly": True},
        ],
    }
    return container


def _credentials(job: Job, info: contract.PodInfo) -> Manifest:
    """Return the container fields that refer to the credentials of a replica; empty if there are none."""
    of_bucket: list[Manifest] = credentials(job).get("envFrom", [])
    sources = [*of_bucket, *tracking_credentials(job, info)]
    return {"envFrom": sources} if sources else {}


def credentials(job: Job) -> Manifest:
    """Return the container fields that refer to the bucket's credentials; empty if a service account has access."""
    artifacts = job.spec.artifacts
    if artifacts is None or artifacts.secret_name is None:
        return {}
    return {"envFrom": [{"secretRef": {"name": artifacts.secret_name}}]}


def pod_security(user: int | None = POD_USER) -> Manifest:
    """Return a security context for the `restricted` Pod Security Standard. user: uid and gid; None sets neither."""
    own = {} if user is None else {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return {"runAsNonRoot": True, **own, "seccompProfile": {"type": "RuntimeDefault"}}


def with_restricted_security(pod: Manifest) -> Manifest:
    """Make all containers conform to the `restricted` standard, sidecars too, except in fields that they set."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec = dict(pod["spec"])
    for kind in {"initContainers", "containers"} & spec.keys():
        spec[kind] = [merged({"securityContext": security}, container) for container in spec[kind]]
    return {**pod, "spec": spec}


def _resources(job: Job, replica: ReplicaSpec) -> Manifest:
    limits: dict[str, Any] = dict(replica.resources.limits)
    if replica.gpus:
        limits[job.spec.accelerator.resource_name] = replica.gpus
    resources = {"requests": dict(replica.resources.requests), "limits": limits}
    return {kind: quantities for kind, quantities in resources.items() if quantities}


def _accelerators(job: Job, replica: ReplicaSpec) -> dict[str, str]:
    """Return variables that name the requested accelerators, so that a container without them fails."""
    name = job.spec.accelerator.resource_name
    count = str(replica.gpus or replica.resources.limits.get(name, 0))
    if not count.isdecimal() or not int(count):
        return {}
    return {contract.ENV_GPUS: count, contract.ENV_GPU_RESOURCE: name}


def _placement(job: Job, replica: ReplicaSpec) -> Manifest:
    if not replica.gpus:
        return {}
    accelerator = job.spec.accelerator
    placement: Manifest = {"tolerations": accelerator_tolerations(job)}
    if accelerator.node_selector:
        placement["nodeSelector"] = ON_LINUX | accelerator.node_selector
    if accelerator.runtime_class_name:
        placement["runtimeClassName"] = accelerator.runtime_class_name
    return placement


def accelerator_tolerations(job: Job) -> list[Any]:
    """Return the tolerations for the taints of nodes with the job's accelerators."""
    accelerator = job.spec.accelerator
    taint = {"key": accelerator.resource_name, "operator": "Exists", "effect": "NoSchedule"}
    return [taint, *accelerator.tolerations]


def _environment(job: Job, replica: Replica) -> dict[str, str]:
    env = {
        contract.ENV_JOB: job.name,
        contract.ENV_NAMESPACE: job.namespace,
        contract.ENV_UID: job.uid,
        contract.ENV_ATTEMPT: str(replica.attempt),
        contract.ENV_ROLE: replica.role,
        contract.ENV_INDEX: str(replica.index),
        contract.ENV_STRATEGY: job.spec.strategy,
        contract.ENV_PROGRESS_PORT: str(contract.PROGRESS_PORT),
        "PYTHONUNBUFFERED": "1",
    }
    if job.spec.data:
        env[contract.ENV_DATA_URI] = job.spec.data.uri
    artifacts = job.spec.artifacts
    if artifacts:
        env[contract.ENV_ARTIFACTS_URI] = job.artifacts_uri or ""
        resume = artifacts.resume_uri if artifacts.resume == Resume.FROM_URI else artifacts.resume.value
        env[contract.ENV_RESUME] = resume or ""
        if (chosen := job.status.resumed_from) and artifacts.resume != Resume.NEVER:
            env[contract.ENV_RESUME] = chosen.checkpoint
            env[contract.ENV_RESUME_SINCE] = str(chosen.attempt)
        if skipped := job.status.checkpoints_to_skip:
            env[contract.ENV_RESUME_SKIP] = " ".join(skipped)
        if artifacts.endpoint:
            env["AWS_ENDPOINT_URL_S3"] = artifacts.endpoint
    return env
