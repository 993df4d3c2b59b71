"""The plan of a job of any strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dtj.api.horovod import HOROVOD
from dtj.api.identity import LABEL_JOB, LABEL_MANAGED_BY, MANAGER
from dtj.api.job import POD_USER, Job, Manifest
from dtj.api.names import network_policy_name
from dtj.api.parameter_server import PARAMETER_SERVER
from dtj.api.strategies import RULES
from dtj.api.strategy import StrategyRules
from dtj.api.torch_distributed import TORCH_DISTRIBUTED
from dtj.plan.gang import with_gang
from dtj.plan.horovod import horovod_plan
from dtj.plan.model import Plan
from dtj.plan.mpijob import mpijob_plan
from dtj.plan.parameter_server import parameter_server_plan
from dtj.plan.pods import metadata, with_pods
from dtj.plan.tensorboard import DEFAULT_IMAGE, tensorboard
from dtj.plan.torch_distributed import torch_distributed_plan
from dtj_trainer import contract

# The plan function of each strategy, and the registration of a strategy.

PLANS: dict[str, Callable[[Job], Plan]] = {
    HOROVOD.name: lambda job: mpijob_plan(job) if job.by_mpi_operator else horovod_plan(job),
    PARAMETER_SERVER.name: parameter_server_plan,
    TORCH_DISTRIBUTED.name: torch_distributed_plan,
}
"""The function that plans a job without faults, by the name of the strategy."""


def register(rules: StrategyRules, plan: Callable[[Job], Plan]) -> None:
    """Register a strategy. Generic code derives all behavior from its rules and its plan."""
    RULES[rules.name], PLANS[rules.name] = rules, plan


# A NetworkPolicy for a job's pods: only these pods reach each other, and the operator reads their progress.
#
# Egress stays open, because DNS, S3, data and package indexes may be anywhere.

OPERATOR_LABELS = {"app.kubernetes.io/name": "dtj-operator"}
"""The labels of the operator's pods, as the chart sets them."""


def network_policy(job: Job, operator_namespace: str) -> Manifest:
    """Return the job's NetworkPolicy: sshd, ps, rendezvous and MPI's random ports accept the job's pods only."""
    own = {"matchLabels": {LABEL_MANAGED_BY: MANAGER, LABEL_JOB: job.name}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": dict(OPERATOR_LABELS)},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, network_policy_name(job.name, job.short_uid)),
        "spec": {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": own}]},
                {"from": [operator], "ports": [{"port": contract.PROGRESS_PORT, "protocol": "TCP"}]},
            ],
        },
    }


def plan_job(
    job: Job,
    *,
    tensorboard_image: str = DEFAULT_IMAGE,
    pod_user: int | None = POD_USER,
    operator_namespace: str | None = None,
) -> Plan:
    """Return the objects that a job without faults needs in the attempt that its status has.

    tensorboard_image: the image of a TensorBoard for which the job names none.
    pod_user: user and group of pods whose template names none; None leaves the choice to the cluster.
    operator_namespace: the plan has a NetworkPolicy that lets the operator in this namespace reach the pods; None:
    the plan has no NetworkPolicy.
    """
    job = replace(job, pod_user=pod_user)
    plan = with_gang(job, plan_without_gang(job, tensorboard_image))
    if operator_namespace is None:
        return plan
    return replace(plan, network_policy=network_policy(job, operator_namespace))


def plan_without_gang(job: Job, tensorboard_image: str = DEFAULT_IMAGE) -> Plan:
    """Return the same plan without gang scheduling, whatever the job's schedulingPolicy says."""
    plan = with_pods(job, PLANS[job.spec.strategy](job))
    return replace(plan, tensorboard=tensorboard(job, tensorboard_image))
