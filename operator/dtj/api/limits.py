"""What can't run on any cluster: a variable that no process takes, a list that no object holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from dtj.api.job import Fault, Job
from dtj.api.names import host_name
from dtj.api.spec import Horovod, ReplicaSpec, Strategy
from dtj_trainer import contract

VARIABLE_BYTES = 128 * 1024
"""Of one NAME=value of a process's environment with its end: MAX_ARG_STRLEN of Linux."""
CONFIG_BYTES = 1024 * 1024
"""Of the values of a ConfigMap."""
# The start scripts and ssh's settings, which are in it too.
_SCRIPTS_BYTES = 32 * 1024
_OUTSIDE_TF_CONFIG = ("evaluator", "launcher")


def size_faults(job: Job) -> Iterator[Fault]:
    """Why a job of this size can never run."""
    replicas = job.spec.replica_specs.given()
    largest = max(replicas, key=lambda role: replicas[role].replicas, default=None)
    if largest is None:
        return
    where = f"spec.replicaSpecs.{largest}.replicas"
    if job.spec.strategy is Strategy.PARAMETER_SERVER:
        size = tf_config_bytes(job, replicas)
        if size > VARIABLE_BYTES:
            yield Fault(
                where,
                f"too many: TF_CONFIG, which names every replica, would have {size:,} bytes, and a process takes a "
                f"variable of {VARIABLE_BYTES:,} bytes at most; ask for fewer replicas, or use shorter names",
            )
            return
        listed = size
    else:
        listed = hostfile_bytes(job, replicas)
    size = listed + len(json.dumps(job.spec.model_dump(by_alias=True, exclude_unset=True)))
    if size + _SCRIPTS_BYTES > CONFIG_BYTES:
        yield Fault(
            where if listed * 2 > size else "spec",
            f"too large: the job's ConfigMap, which names every replica and holds the spec, would have "
            f"{size + _SCRIPTS_BYTES:,} bytes, and may have {CONFIG_BYTES:,}",
        )


def tf_config_bytes(job: Job, replicas: Mapping[str, ReplicaSpec]) -> int:
    """Bytes of the longest `TF_CONFIG=…` of a job, with its end."""
    cluster = {"chief": 1} | {role: spec.replicas for role, spec in replicas.items()}
    hosts = 0
    for role, count in cluster.items():
        if role not in _OUTSIDE_TF_CONFIG:
            # A host in JSON: quotes, port, comma and space; and the role's own key and brackets.
            entry = len(f'"{host_name(job.name, job.namespace, role, 0)}:{contract.TENSORFLOW_PORT}", ') - 1
            hosts += count * entry + _digits(count) + len(f'"{role}": [], ')
    task = f', "task": {{"type": "evaluator", "index": {max(cluster.values())}}}, "environment": "cloud"}}'
    return len(f'{contract.ENV_TF_CONFIG}={{"cluster": {{') + hosts + len(task) + len("}") + 1


def hostfile_bytes(job: Job, replicas: Mapping[str, ReplicaSpec]) -> int:
    """Bytes of a Horovod job's hostfile."""
    worker = replicas.get("worker")
    if worker is None:
        return 0
    slots = (job.spec.horovod or Horovod()).slots_per_worker or worker.gpus or 1
    line = len(f"{host_name(job.name, job.namespace, 'worker', 0)} slots={slots}\n") - 1
    return worker.replicas * line + _digits(worker.replicas)


def _digits(count: int) -> int:
    """How many digits the numbers from 0 below `count` have together."""
    return sum(max(count - (10**power if power else 0), 0) for power in range(len(str(count))))
