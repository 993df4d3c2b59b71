"""The plan of strategy ParameterServer: chief or master, workers, ps and evaluator of a TFJob, with TF_CONFIG.

TF_CONFIG is that of Kubeflow's TFJob (`genTFConfigJSONStr`): roles in lower case, port 2222, environment `cloud`, and
an evaluator that is not in the cluster. Scripts written for TFJob run unchanged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from dtj.api.job import Job
from dtj.api.parameter_server import CHIEF, EVALUATOR, PARAMETER_SERVER, PS, WORKER
from dtj.api.pod_template import program_of
from dtj.api.shape import Replica, Shape, shape_of
from dtj.api.spec import ChiefSpec, ReplicaSpec, Resources
from dtj.plan.config_map import config_map
from dtj.plan.model import Plan
from dtj.plan.pods import HIDDEN_GPUS, headless_service, restoring_peers
from dtj.plan.recipe import FromConfig, Recipe, Render, Value, address, in_cluster, rendered
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
    rules = job.rules
    specs = {role: job.given.get(role, _DEFAULT_CHIEF) for role in job.pods}
    leader = rules.named["decides"][0]
    shape = shape_of(job)
    form = _Form(job, shape, probed=not rules.roles[leader].created_first)
    return Plan(
        shape=shape,
        service=headless_service(job),
        config=config_map(job, {_CLUSTER_FILE: form.cluster(in_cluster(job))}),
        recipe=lambda replica: _recipe(form, specs[replica.role], replica),
    )


@dataclass(frozen=True)
class _Form:
    """The properties of a job on which its pods depend, besides their role."""

    job: Job
    shape: Shape
    probed: bool
    """Whether the leader's pod is created only after all servers answer on their ports."""

    @property
    def alone(self) -> bool:
        """Whether the job has one pod only. TFJob sets no TF_CONFIG then."""
        return len(self.shape.replicas) == 1

    def cluster(self, render: Render) -> str:
        """Return the part of TF_CONFIG that all replicas share, as JSON."""
        return json.dumps(
            {
                role: [
                    rendered(address(pod, contract.TENSORFLOW_PORT), render) for pod in self.shape.roles[role]
                ]
                for role in self.job.pods
                if role != EVALUATOR
            }
        )

    def info(self, replica: Replica) -> contract.PodInfo:
        """What the trainer in the pod needs to know."""
        evaluates = replica.role == EVALUATOR
        (leader,) = self.shape.decisive
        together = (self.shape.restarts_with or {})[leader]
        # A leader in the second stage restores alone: the servers must answer before its pod is created, and so must
        # not wait for its restore.
        first = self.job.rules.named["created_first"]
        peers = {
            role: len(names)
            for role, names in self.shape.roles.items()
            if role in first and together.issuperset(names)
        }
        return contract.PodInfo(
            role=replica.role,
            index=replica.index,
            part="primary" if replica.name == leader else "evaluator" if evaluates else "other",
            # The Saver of `compat.v1` runs in the leader, but each ps reads its part of the checkpoint from its own
            # disk. Without ps, each worker reads the checkpoint.
            restores=evaluates or replica.name in together,
            reads_data=replica.role != PS,
            peers=restoring_peers(self.job, peers) if replica.role in peers else None,
        )


def _tf_config(replica: Replica) -> str:
    """Return TF_CONFIG of one replica with a variable in place of the cluster, which the kubelet expands. With all
    hosts in every pod, the size of a job's pods would grow with the square of their number.
    """
    task = json.dumps({"type": replica.role, "index": replica.index})
    return f'{{"cluster": $({contract.ENV_TF_CLUSTER}), "task": {task}, "environment": "cloud"}}'


def _recipe(form: _Form, spec: ReplicaSpec, replica: Replica) -> Recipe:
    job = form.job
    cluster: dict[str, Value] = {
        contract.ENV_TF_CLUSTER: FromConfig(_CLUSTER_FILE, form.cluster),
        contract.ENV_TF_CONFIG: _tf_config(replica),
    }
    env: dict[str, Value] = {
        contract.ENV_UPDATES: job.spec.parameter_server_options.updates.value,
        **({} if form.alone else cluster),
        "TF_GRPC_DEFAULT_OPTIONS": _GIVE_UP_SILENT,
    }
    if not spec.gpus and job.spec.accelerator.resource_name not in spec.resources.limits:
        env |= HIDDEN_GPUS
    return Recipe(
        spec=spec,
        info=form.info(replica),
        program=program_of(job.spec, spec),
        environment=env,
        ports={"tfjob-port": contract.TENSORFLOW_PORT},
        ready="tfjob-port" if form.probed and replica.role in _SERVERS else None,
    )
