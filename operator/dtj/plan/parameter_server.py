"""TensorFlow parameter servers: a chief, workers, ps and an evaluator, which learn the cluster from TF_CONFIG.

TF_CONFIG is that of Kubeflow's TFJob (`genTFConfigJSONStr`): roles in lower case, port 2222, environment `cloud`, and
an evaluator that is not in the cluster. Scripts written for TFJob run unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dtj.api.job import Job, Manifest
from dtj.api.names import config_name, host_name
from dtj.api.parameter_server import CHIEF, EVALUATOR, PS, WORKER
from dtj.api.pod_template import TRAINER_CONTAINER, own_program
from dtj.api.spec import ChiefSpec, ReplicaSpec, Resources
from dtj.plan.model import Plan, Replica
from dtj.plan.pods import HIDDEN_GPUS, headless_service, replica_pod, replicas, trainer_container
from dtj.plan.start import START, config_map
from dtj_trainer import contract

_DEFAULT_CHIEF = ChiefSpec(resources=Resources(requests={"cpu": "500m", "memory": "1Gi"}))
# gRPC options for TensorFlow: a connection breaks when sent data stays unacknowledged for this time, instead of after
# 15 minutes. Keepalive pings are off, because a server closes connections that ping too often.
_GIVE_UP_SILENT = (
    "grpc.keepalive_time_ms=2147483646,"
    f"grpc.keepalive_timeout_ms={contract.TENSORFLOW_SILENCE_SECONDS * 1000}"
)
_CLUSTER_FILE = "tf_cluster.json"
_PARTS: dict[str, contract.Part] = {CHIEF: "primary", EVALUATOR: "evaluator"}
# The roles that run a TensorFlow server. The chief and the evaluator are clients.
_SERVERS = (WORKER, PS)


def parameter_server_plan(job: Job) -> Plan:
    """Return the objects that the job needs now. The job must have no faults. The status says each replica's
    attempt.
    """
    specs = {CHIEF: _DEFAULT_CHIEF} | job.spec.replica_specs.given()
    pods = {
        role: replicas(job, role, spec.replicas, 1, job.status.replica_attempts)
        for role, spec in specs.items()
    }
    names = {role: [replica.name for replica in of_role] for role, of_role in pods.items()}
    # The loss of any ps loses variables, and the chief can't continue without them. A failed chief leaves state on
    # the ps that breaks its successor (the closed token queue of a SyncReplicasOptimizer). Therefore all ps and the
    # chief restart together from the newest checkpoint. Workers hold no state.
    state = frozenset(names[PS] + names[CHIEF])
    return Plan(
        service=headless_service(job),
        config=config_map(job, {_CLUSTER_FILE: tf_cluster(job, specs)}),
        ssh_secret=None,
        # The chief starts when the servers run, so that its connection timeout does not include the wait for nodes.
        stages=(pods[WORKER] + pods[PS], pods[CHIEF] + pods.get(EVALUATOR, ())),
        pod=lambda replica: _pod(job, specs[replica.role], replica),
        decisive=tuple(names[CHIEF]),
        reporter=names[CHIEF][0],
        answering=frozenset(name for role in names for name in names[role]),
        evaluator=next(iter(names.get(EVALUATOR, ())), None),
        evaluator_timeout=job.spec.parameter_server_options.evaluator_timeout_seconds,
        restarts_with={
            name: state if role in (PS, CHIEF) else frozenset({name})
            for role in names
            for name in names[role]
        },
    )


def tf_cluster(job: Job, specs: Mapping[str, ReplicaSpec]) -> str:
    """Return the part of TF_CONFIG that all replicas share, as JSON."""
    cluster = {
        role: [
            f"{host_name(job.name, job.namespace, role, index)}:{contract.TENSORFLOW_PORT}"
            for index in range(spec.replicas)
        ]
        for role, spec in specs.items()
        if role != EVALUATOR
    }
    return json.dumps(cluster)


def _tf_config(replica: Replica) -> str:
    """Return TF_CONFIG of one replica with a variable in place of the cluster, which the kubelet expands. With all
    hosts in every pod, the size of a job's pods would grow with the square of their number.
    """
    task = json.dumps({"type": replica.role, "index": replica.index})
    return f'{{"cluster": $({contract.ENV_TF_CLUSTER}), "task": {task}, "environment": "cloud"}}'


def _pod_info(role: str, index: int) -> contract.PodInfo:
    return contract.PodInfo(
        role=role,
        index=index,
        part=_PARTS.get(role, "other"),
        # The chief runs the `compat.v1` Saver of TFJob scripts, but each ps reads the checkpoint from its own disk.
        restores=role != WORKER,
        reads_data=role != PS,
    )


def _pod(job: Job, spec: ReplicaSpec, replica: Replica) -> Manifest:
    own = job.spec.parameter_server_options
    env = {
        contract.ENV_UPDATES: own.updates.value,
        contract.ENV_TF_CONFIG: _tf_config(replica),
        "TF_GRPC_DEFAULT_OPTIONS": _GIVE_UP_SILENT,
    }
    if not spec.gpus and job.spec.accelerator.resource_name not in spec.resources.limits:
        env |= HIDDEN_GPUS
    made = replica_pod(
        job,
        replica,
        spec,
        _pod_info(replica.role, replica.index),
        command=[*START],
        env=env,
        extra={"containers": [_container(replica.role)]},
    )
    cluster = {
        "name": contract.ENV_TF_CLUSTER,
        "valueFrom": {"configMapKeyRef": {"name": config_name(job.name), "key": _CLUSTER_FILE}},
    }
    container = trainer_container(made)
    # dtj-launch also starts a role's own command, so that its artifacts and its exit code are handled as for others.
    container["command"] = [*START, *_program(job, spec)]
    container.pop("args", None)
    # The kubelet expands a variable only in the variables after it.
    container["env"] = [cluster, *container["env"]]
    return made


def _program(job: Job, spec: ReplicaSpec) -> list[str]:
    """Return the words of a role's program. As in a container, a role's own command does not get the job's args."""
    command, args = own_program(spec)
    return [*command, *args] if command else [*job.spec.command, *(args or job.spec.args)]


def _container(role: str) -> Manifest:
    ports = [
        {"name": "tfjob-port", "containerPort": contract.TENSORFLOW_PORT},
        {"name": "progress", "containerPort": contract.PROGRESS_PORT},
    ]
    if role not in _SERVERS:
        return {"name": TRAINER_CONTAINER, "ports": ports}
    probe = {"tcpSocket": {"port": contract.TENSORFLOW_PORT}, "periodSeconds": 2, "failureThreshold": 10}
    return {"name": TRAINER_CONTAINER, "ports": ports, "readinessProbe": probe}
