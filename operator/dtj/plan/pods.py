"""What the pods of every strategy have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, assert_never

from dtj.api.identity import (
    API_VERSION,
    KIND,
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB,
    LABEL_MANAGED_BY,
    LABEL_ROLE,
    LABEL_ROUNDS,
    MANAGER,
)
from dtj.api.job import POD_USER, Job, Manifest
from dtj.api.pod_template import (
    CONFIG_VOLUME,
    DATA_CACHE_VOLUME,
    RUN_VOLUME,
    SHM_VOLUME,
    TRAINER_CONTAINER,
    WORKSPACE_VOLUME,
)
from dtj.api.shape import Replica
from dtj.api.spec import CacheClaim, CacheEmptyDir, CacheHostPath, DataCache, ReplicaSpec, Resume, WarmSpare
from dtj.api.validation import cache_bytes
from dtj.plan.code import code_environment, code_pod_spec
from dtj.plan.history import history_environment
from dtj.plan.merge import merged
from dtj.plan.model import Plan
from dtj.plan.recipe import (
    FromConfig,
    OfUser,
    Recipe,
    Render,
    Text,
    Value,
    in_cluster,
    rendered,
)
from dtj_trainer import contract

# Which nodes a pod avoids, and how long a pod stays bound to an unreachable node.

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
    """Return whether a toleration is for this taint. As in the API server, one without a key is for all taints."""
    return (
        isinstance(toleration, dict)
        and (toleration.get("key") or key) == key
        and (toleration.get("effect") or "NoExecute") == "NoExecute"
    )


# The volume for blocks of the data set, in the pods of every strategy that read data.

_FOLDER = str(contract.ROOT / contract.DATA_CACHE)


def cache_environment(job: Job) -> dict[str, str]:
    """Return the variables that name the cache and its size; empty where the job has none."""
    cache = job.cache
    if cache is None:
        return {}
    return {contract.ENV_DATA_CACHE: _FOLDER, contract.ENV_DATA_CACHE_BYTES: str(cache_bytes(cache))}


def cache_pod_spec(job: Job) -> Manifest:
    """Return what a pod spec needs for the cache; empty where the job has none."""
    cache = job.cache
    if cache is None:
        return {}
    mount = {"name": DATA_CACHE_VOLUME, "mountPath": _FOLDER}
    security: Manifest = {}
    source = cache.persistent_volume_claim or cache.empty_dir or cache.host_path
    volume: Manifest
    match source:
        case CacheClaim():
            volume = {"persistentVolumeClaim": {"claimName": source.claim_name}}
            # By default, the kubelet would set the group of every cached file at the start of each pod.
            security = {"securityContext": {"fsGroupChangePolicy": "OnRootMismatch"}}
        case CacheEmptyDir():
            volume = {"emptyDir": _empty_dir(cache, source)}
        case CacheHostPath():
            volume = {"hostPath": {"path": source.path, "type": "DirectoryOrCreate"}}
            # Jobs of one namespace must not see the files of another. The kubelet creates the folder with the mode of
            # the folder around it.
            mount["subPath"] = job.namespace
        case None:
            raise ValueError("spec.data.cache has no volume: only a job without faults can be planned")
        case _:
            assert_never(source)
    return {
        "containers": [{"name": TRAINER_CONTAINER, "volumeMounts": [mount]}],
        "volumes": [{"name": DATA_CACHE_VOLUME, **volume}],
        **security,
    }


def _empty_dir(cache: DataCache, source: CacheEmptyDir) -> Manifest:
    # The kubelet evicts a pod whose emptyDir exceeds the limit. Allow a quarter more than the size of the cache: each
    # rank of a pod removes old blocks only after it has written some new blocks.
    limit = {"sizeLimit": str(cache_bytes(cache) * 5 // 4)}
    return {"medium": source.medium.value, **limit} if source.medium else limit


# Variables for the tracking server (MLflow), in the pod that uploads the artifacts of rank 0 or of the chief.


def tracking_environment(job: Job) -> dict[str, str]:
    """Return the variables that name the tracking server; empty where the job has none."""
    mlflow = job.mlflow
    if mlflow is None:
        return {}
    experiment = {contract.ENV_TRACKING_EXPERIMENT: mlflow.experiment} if mlflow.experiment else {}
    return {contract.ENV_TRACKING_URI: OfUser(mlflow.uri), **experiment}


# Hide the GPUs of the node from a replica that asks for none. Where NVIDIA's container runtime is the node's default,
# the replica would see all GPUs.
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
        "metadata": metadata(job, job.service),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_MANAGED_BY: MANAGER, LABEL_JOB: job.name},
        },
    }


def restoring_peers(job: Job, pods: Mapping[str, int]) -> contract.Peers | None:
    """Return the addresses by which pods that restore the same checkpoint reach each other; None for a single pod,
    and for pods that never restore a checkpoint.

    pods: the number of these pods by role. All of them are created together, so that none waits for a pod that is
    created later. Without artifacts, ranks that restart in place restore the checkpoint in the pod of rank 0.
    """
    if sum(pods.values()) < 2 or (job.spec.artifacts is None and not job.restarts_in_place):
        return None
    return contract.Peers(f"{job.name}-{contract.Peers.POD}.{job.domain}", pods)


def rounds_of(job: Job) -> contract.Rounds | None:
    """Return what the pods need to know to restart their ranks in place; None: every failure ends the pods."""
    if not job.restarts_in_place:
        return None
    return contract.Rounds(
        before=job.status.restarts.application,
        limit=job.run_policy.backoff_limit,
        spare=job.run_policy.warm_spare is not WarmSpare.NEVER,
    )


def ranks_info(job: Job, role: str, index: int, *, pods: int, slots: int = 1) -> contract.PodInfo:
    """Return what the trainer needs to know in a pod that runs ranks. Each pod restores the newest checkpoint and
    reads data, and the pod with rank 0 uploads.

    pods: the number of pods of the role. slots: the ranks in each pod.
    """
    return contract.PodInfo(
        role=role,
        index=index,
        slots=slots,
        part="primary",
        restores=True,
        reads_data=True,
        peers=restoring_peers(job, {role: pods}),
        rounds=rounds_of(job),
    )


def trainer_container(pod: Manifest) -> Manifest:
    """Return the container of a pod, or of a pod template, that runs the training."""
    container: Manifest = next(c for c in pod["spec"]["containers"] if c["name"] == TRAINER_CONTAINER)
    return container


def with_pods(job: Job, plan: Plan) -> Plan:
    """Return a strategy's plan with the variables of every strategy, and with pods for Kubernetes."""
    common = Common(job)

    def recipe(replica: Replica) -> Recipe:
        return complete(common, replica, plan.recipe(replica))

    return replace(plan, recipe=recipe, pod=lambda replica: replica_pod(common, replica, recipe(replica)))


@dataclass(frozen=True)
class Common:
    """The values that all pods of a job share. Each value is computed when the first pod needs the value."""

    job: Job

    @cached_property
    def environment(self) -> dict[str, str]:
        """The variables that every strategy sets. Variables that differ by replica, such as DTJ_INDEX, are empty."""
        return _environment(self.job)

    @cached_property
    def of_data(self) -> dict[str, str]:
        """The variables of pods that read data."""
        return cache_environment(self.job)

    @cached_property
    def of_code(self) -> Mapping[bool, dict[str, Text]]:
        """The variables of the code, in pods that read data and in the others."""
        return {cached: code_environment(self.job, cached=cached) for cached in (True, False)}

    @cached_property
    def of_tracking(self) -> dict[str, str]:
        """The variables of the pod that writes to the tracking server."""
        return tracking_environment(self.job)

    @cached_property
    def of_history(self) -> dict[str, str]:
        """The variable of the pod that writes the history."""
        return history_environment(self.job)

    @cached_property
    def variables(self) -> list[Manifest]:
        """The job's own variables, as fields of a container."""
        return [variable.model_dump(by_alias=True, exclude_none=True) for variable in self.job.spec.env]

    @cached_property
    def render(self) -> Render:
        """See `in_cluster`."""
        return in_cluster(self.job)

    @cached_property
    def data_pod_spec(self) -> Manifest:
        """See `cache_pod_spec`."""
        return cache_pod_spec(self.job)

    @cached_property
    def avoided(self) -> list[str]:
        """The nodes that the pods avoid."""
        return self.job.run_policy.avoided_nodes(self.job.status.node_failures)


def complete(common: Common, replica: Replica, recipe: Recipe) -> Recipe:
    """Return a strategy's recipe with the variables and the port of every strategy, and the variables of the job."""
    info = recipe.info
    primary = info.uploads == "primary"
    environment: dict[str, Value] = {
        **common.environment,
        contract.ENV_ATTEMPT: str(replica.attempt),
        contract.ENV_ROLE: replica.role,
        contract.ENV_INDEX: str(replica.index),
        contract.ENV_POD: info.to_json(),
        **_accelerators(common.job, recipe.spec),
        **(common.of_data if info.reads_data else {}),
        **(common.of_tracking if primary else {}),
        **recipe.environment,
        **common.of_code[info.reads_data],
        **(common.of_history if primary else {}),
    }
    ports = recipe.ports | {"progress": contract.PROGRESS_PORT} if recipe.serves_progress else recipe.ports
    return replace(recipe, environment=environment, ports=ports, variables=common.variables)


def replica_pod(common: Common, replica: Replica, recipe: Recipe) -> Manifest:
    """Return one pod for Kubernetes: the common base, with the recipe and the user's template merged over it.

    recipe: as `complete` returns it.
    """
    job = common.job
    command = [rendered(word, common.render) for word in recipe.command]
    base: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(job, replica.name, replica_labels(replica, recipe.info)),
        "spec": {
            "hostname": replica.name,
            "subdomain": job.service,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": contract.TERMINATION_GRACE_SECONDS,
            "securityContext": pod_security(job.pod_user),
            "nodeSelector": dict(ON_LINUX),
            "containers": [_container(common, recipe, command) | _credentials(job, recipe.info)],
            "volumes": [
                {"name": WORKSPACE_VOLUME, "emptyDir": {}},
                {"name": RUN_VOLUME, "emptyDir": {"medium": "Memory"}},
                {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory"}},
                {"name": CONFIG_VOLUME, "configMap": {"name": job.config_map}},
            ],
            **_placement(job, recipe.spec),
        },
    }
    with_cache = base
    if recipe.info.reads_data and common.data_pod_spec:
        with_cache = merged(base, {"spec": common.data_pod_spec})
    with_code = merged(with_cache, {"spec": code_pod_spec(job)}) if job.spec.code else with_cache
    pod: Manifest = merged(with_code, {"spec": _additions(recipe)})
    if recipe.spec.template:
        pod = merged(pod, recipe.spec.template)
    recipe.set_program(trainer_container(pod), command)
    return with_avoided_nodes(with_node_tolerations(with_restricted_security(pod)), common.avoided)


def replica_labels(replica: Replica, info: contract.PodInfo) -> dict[str, str]:
    """Return the labels that identify a pod within its job, and LABEL_ROUNDS if the ranks can restart in place."""
    rounds = info.rounds
    return {
        LABEL_ROLE: replica.role,
        LABEL_INDEX: str(replica.index),
        LABEL_ATTEMPT: str(replica.attempt),
        **({LABEL_ROUNDS: f"{rounds.before}-{rounds.limit}"} if rounds else {}),
    }


def _container(common: Common, recipe: Recipe, command: list[str]) -> Manifest:
    job = common.job
    return {
        "name": TRAINER_CONTAINER,
        "image": job.spec.image,
        "command": command,
        "env": _variables(common, recipe),
        "resources": _resources(job, recipe.spec),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": WORKSPACE_VOLUME, "mountPath": str(contract.ROOT)},
            {"name": RUN_VOLUME, "mountPath": str(contract.ROOT / contract.RUN)},
            {"name": SHM_VOLUME, "mountPath": "/dev/shm"},  # noqa: S108 - a mount point, not a file of ours
            {"name": CONFIG_VOLUME, "mountPath": str(contract.CONFIG_DIR), "readOnly": True},
        ],
    }


def _additions(recipe: Recipe) -> Manifest:
    """Return the fields of a pod's spec that a strategy adds to the base."""
    mounts = {"volumeMounts": [*recipe.mounts]} if recipe.mounts else {}
    volumes = {"volumes": [*recipe.volumes]} if recipe.volumes else {}
    return {"containers": [recipe.listening | mounts], **volumes}


def _variables(common: Common, recipe: Recipe) -> list[Manifest]:
    """Return the variables of dtj and of the job as entries of a container."""
    files: list[Manifest] = []
    texts: list[Manifest] = []
    for name, value in recipe.environment.items():
        if isinstance(value, str):
            texts.append({"name": name, "value": str(value)})
        elif isinstance(value, FromConfig):
            key = {"name": common.job.config_map, "key": value.file}
            files.append({"name": name, "valueFrom": {"configMapKeyRef": key}})
        else:
            texts.append({"name": name, "value": rendered(value, common.render)})
    # Put variables from files first: the kubelet expands `$(NAME)` only in variables that come after NAME.
    return [*files, *texts, *recipe.variables]


def _credentials(job: Job, info: contract.PodInfo) -> Manifest:
    """Return the container fields that refer to the credentials of a replica; empty if there are none."""
    sources: list[Manifest] = credentials(job).get("envFrom", [])
    if job.mlflow is not None and job.mlflow.secret_name is not None and info.uploads == "primary":
        sources = [*sources, {"secretRef": {"name": job.mlflow.secret_name}}]
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


def _environment(job: Job) -> dict[str, str]:
    env = {
        contract.ENV_JOB: job.name,
        contract.ENV_NAMESPACE: job.namespace,
        contract.ENV_UID: job.uid,
        **dict.fromkeys((contract.ENV_ATTEMPT, contract.ENV_ROLE, contract.ENV_INDEX), ""),
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
            env["AWS_ENDPOINT_URL_S3"] = OfUser(artifacts.endpoint)
    return env
