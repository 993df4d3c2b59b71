"""TensorFlow in the forms of a TFJob: chief or master, workers, ps and evaluator, whose addresses TF_CONFIG has.

TF_CONFIG is that of Kubeflow's TFJob (`genTFConfigJSONStr`): roles in lower case, port 2222, environment `cloud`, and
an evaluator that is not in the cluster. Scripts written for TFJob run unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtj.api.job import Job, Manifest
from dtj.api.names import config_name, host_name
from dtj.api.parameter_server import CHIEF, EVALUATOR, PARAMETER_SERVER, PS, WORKER
from dtj.api.pod_template import TRAINER_CONTAINER, program_of
from dtj.api.spec import ChiefSpec, ReplicaSpec, Resources
from dtj.api.strategy import pods_of
from dtj.plan.model import Plan, Replica
from dtj.plan.pods import HIDDEN_GPUS, headless_service, replica_pod, replicas, restoring_peers
from dtj.plan.start import START, config_map, started
from dtj_trainer import contract

_DEFAULT_CHIEF = ChiefSpec(resources=Resources(**PARAMETER_SERVER.roles[CHIEF].resources))
# gRPC options for TensorFlow: a connection breaks when sent data stays unacknowledged for this time, instead of after
# 15 minutes. Keepalive pings are off, because a server closes connections that ping too often.
_GIVE_UP_SILENT = (
    "grpc.keepalive_time_ms=2147483646,"
    f"grpc.keepalive_timeout_ms={contract.TENSORFLOW_SILENCE_SECONDS * 1000}"
)
_CLUSTER_FILE = "tf_cluster.json"
# The roles that run a TensorFlow server. The chief, the master and the evaluator are clients.
_SERVERS = (WORKER, PS)


def parameter_server_plan(job: Job) -> Plan:
    """Return the objects that the job needs now. The job must have no faults. The status says each replica's
    attempt.
    """
    rules, given = job.spec.rules, job.spec.replica_specs.given()
    specs = {role: given.get(role, _DEFAULT_CHIEF) for role, _ in pods_of(job.spec)}
    pods = {
        role: replicas(job, role, spec.replicas, 1, job.status.replica_attempts)
        for role, spec in specs.items()
    }
    names = {role: [replica.name for replica in of_role] for role, of_role in pods.items()}
    leader = rules.names(lambda role: role.decides)[0]
    decisive = names[leader][0]
    # A failed leader leaves state on the ps that breaks its successor (the closed token queue of a
    # SyncReplicasOptimizer). Therefore all ps and the leader restart together.
    groups = rules.restart_groups(names) or {}
    # A leader that is created last starts when the servers run, so that its connection timeout does not include the
    # wait for nodes.
    stages = (
        [replica for role in pods if rules.roles[role].created_first is first for replica in pods[role]]
        for first in (True, False)
    )
    form = _Form(job, names, decisive, groups[decisive], probed=not rules.roles[leader].created_first)
    return Plan(
        service=headless_service(job),
        config=config_map(job, {_CLUSTER_FILE: tf_cluster(job, specs)}),
        ssh_secret=None,
        stages=tuple(tuple(stage) for stage in stages if stage),
        pod=lambda replica: _pod(form, specs[replica.role], replica),
        decisive=(decisive,),
        reporter=decisive,
        serves_progress=frozenset(groups),
        evaluator=next(iter(names.get(EVALUATOR, ())), None),
        evaluator_timeout=job.spec.parameter_server_options.evaluator_timeout_seconds,
        restarts_with=groups,
    )


@dataclass(frozen=True)
class _Form:
    """What the pods of a job depend on besides their role."""

    job: Job
    names: Mapping[str, Sequence[str]]
    """Names of the pods by role."""
    decisive: str
    """Name of the pod that leads the training."""
    together: frozenset[str]
    """Names of the pods that start again from a checkpoint together."""
    probed: bool
    """Whether the leader is created when the servers answer."""

    @property
    def alone(self) -> bool:
        """Whether the job has one pod only. TFJob sets no TF_CONFIG then."""
        return sum(map(len, self.names.values())) == 1

    def info(self, replica: Replica) -> contract.PodInfo:
        """What the trainer in the pod needs to know."""
        evaluates = replica.role == EVALUATOR
        # A leader that is created when the servers run restores alone: their restore would wait for it.
        first = self.job.spec.rules.created_first()
        peers = {
            role: len(names)
            for role, names in self.names.items()
            if role in first and self.together.issuperset(names)
        }
        return contract.PodInfo(
            role=replica.role,
            index=replica.index,
            part="primary" if replica.name == self.decisive else "evaluator" if evaluates else "other",
            # The leader runs the `compat.v1` Saver of TFJob scripts, but each ps reads the checkpoint from its own
            # disk. Without ps, each worker reads the checkpoint.
            restores=evaluates or replica.name in self.together,
            reads_data=replica.role != PS,
            peers=restoring_peers(self.job, peers) if replica.role in peers else None,
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


def _pod(form: _Form, spec: ReplicaSpec, replica: Replica) -> Manifest:
    job = form.job
    env = {
        contract.ENV_UPDATES: job.spec.parameter_server_options.updates.value,
        **({} if form.alone else {contract.ENV_TF_CONFIG: _tf_config(replica)}),
        "TF_GRPC_DEFAULT_OPTIONS": _GIVE_UP_SILENT,
    }
    if not spec.gpus and job.spec.accelerator.resource_name not in spec.resources.limits:
        env |= HIDDEN_GPUS
    manifest = replica_pod(
        job,
        replica,
        spec,
        form.info(replica),
        command=[*START],
        env=env,
        extra={"containers": [_container(probed=form.probed and replica.role in _SERVERS)]},
    )
    container = started(manifest, program_of(job.spec, spec))
    if not form.alone:
        cluster = {
            "name": contract.ENV_TF_CLUSTER,
            "valueFrom": {"configMapKeyRef": {"name": config_name(job.name), "key": _CLUSTER_FILE}},
        }
        # The kubelet expands a variable only in the variables after it.
        container["env"] = [cluster, *container["env"]]
    return manifest


def _container(*, probed: bool) -> Manifest:
    ports = [
        {"name": "tfjob-port", "containerPort": contract.TENSORFLOW_PORT},
        {"name": "progress", "containerPort": contract.PROGRESS_PORT},
    ]
    if not probed:
        return {"name": TRAINER_CONTAINER, "ports": ports}
    probe = {"tcpSocket": {"port": contract.TENSORFLOW_PORT}, "periodSeconds": 2, "failureThreshold": 10}
    return {"name": TRAINER_CONTAINER, "ports": ports, "readinessProbe": probe}
