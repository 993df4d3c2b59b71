"""TensorFlow parameter servers: a chief, workers, ps and an evaluator, each told of the others by TF_CONFIG.

TF_CONFIG is that of Kubeflow's TFJob (`genTFConfigJSONStr`): roles in lower case, port 2222, environment `cloud`, and
the evaluator outside the cluster, so that scripts written for it run unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dtj.api.job import Job, Manifest
from dtj.api.names import host_name, pod_name
from dtj.api.spec import ChiefSpec, ParameterServer, ReplicaSpec, Resources
from dtj.api.validation import TRAINER_CONTAINER, own_program
from dtj.plan.model import Plan
from dtj.plan.pods import HIDDEN_GPUS, headless_service, replica_pod
from dtj.plan.start import START, config_map
from dtj_trainer import contract

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"

_DEFAULT_CHIEF = ChiefSpec(resources=Resources(requests={"cpu": "500m", "memory": "1Gi"}))
# gRPC as TensorFlow sets it up: it gives a connection up when what was sent is not acknowledged for so long, and not
# after 15 minutes. The time of its pings is never: a server ends connections for them.
_GIVE_UP_SILENT = (
    "grpc.keepalive_time_ms=2147483646,"
    f"grpc.keepalive_timeout_ms={contract.TENSORFLOW_SILENCE_SECONDS * 1000}"
)
# Those that run a TensorFlow server; the chief and the evaluator are clients.
_SERVERS = (WORKER, PS)


def parameter_server_plan(job: Job) -> Plan:
    """The objects that the job needs now, each replica in the attempt that its status says; it is free of faults."""
    replicas = {CHIEF: _DEFAULT_CHIEF} | job.spec.replica_specs.given()
    attempts = job.status.replica_attempts or {}
    names = {
        role: [pod_name(job.name, role, index) for index in range(replica.replicas)]
        for role, replica in replicas.items()
    }
    pods = {
        role: tuple(
            _pod(job, replicas, role, index, attempts.get(f"{role}-{index}", 1))
            for index in range(replica.replicas)
        )
        for role, replica in replicas.items()
    }
    # Variables are lost with any ps, and the chief can't go on without; a chief that failed leaves on the ps what its
    # successor trips over (the closed token queue of a SyncReplicasOptimizer). So all ps and the chief begin together
    # from the newest checkpoint. Workers hold nothing.
    state = frozenset(names[PS] + names[CHIEF])
    return Plan(
        service=headless_service(job),
        config=config_map(job, {}),
        ssh_secret=None,
        # The chief's patience with servers begins when they run, however long a node was waited for.
        stages=(pods[WORKER] + pods[PS], pods[CHIEF] + pods.get(EVALUATOR, ())),
        decisive=tuple(names[CHIEF]),
        reporter=names[CHIEF][0],
        answering=tuple(name for role in names for name in names[role]),
        evaluator=next(iter(names.get(EVALUATOR, ())), None),
        restarts_with={
            name: state if role in (PS, CHIEF) else frozenset({name})
            for role in names
            for name in names[role]
        },
    )


def tf_config(job: Job, replicas: Mapping[str, ReplicaSpec], role: str, index: int) -> str:
    """TF_CONFIG of one replica, as JSON."""
    cluster = {
        other: [
            f"{host_name(job.name, job.namespace, other, number)}:{contract.TENSORFLOW_PORT}"
            for number in range(replica.replicas)
        ]
        for other, replica in replicas.items()
        if other != EVALUATOR
    }
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}, "environment": "cloud"})


def _pod(job: Job, replicas: Mapping[str, ReplicaSpec], role: str, index: int, attempt: int) -> Manifest:
    replica = replicas[role]
    own = job.spec.parameter_server or ParameterServer()
    env = {
        contract.ENV_UPDATES: own.updates.value,
        contract.ENV_TF_CONFIG: tf_config(job, replicas, role, index),
        "TF_GRPC_DEFAULT_OPTIONS": _GIVE_UP_SILENT,
    }
    if not replica.gpus and job.spec.accelerator.resource_name not in replica.resources.limits:
        env |= HIDDEN_GPUS
    made = replica_pod(
        job,
        role,
        index,
        replica,
        attempt=attempt,
        command=[*START],
        env=env,
        extra={"containers": [_container(role)]},
    )
    for container in made["spec"]["containers"]:
        if container["name"] == TRAINER_CONTAINER:
            # Also a role's own program is started by dtj: its artifacts and its end count as the others'.
            container["command"] = [*START, *_program(job, replica)]
            container.pop("args", None)
    return made


def _program(job: Job, replica: ReplicaSpec) -> list[str]:
    """The words of a role's program; as in a container, a command of its own goes without the job's args."""
    command, args = own_program(replica)
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
