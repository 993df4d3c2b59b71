"""The plan of a job of any strategy, and a cache of plans: most passes over a job need the same plan as the last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from threading import Lock
from typing import Any

from dtj.api.horovod import HOROVOD
from dtj.api.identity import LABEL_JOB, LABEL_MANAGED_BY, MANAGER
from dtj.api.job import POD_USER, Job, Manifest
from dtj.api.names import network_policy_name
from dtj.api.parameter_server import PARAMETER_SERVER
from dtj.api.status import JobStatus
from dtj.api.strategies import RULES
from dtj.api.strategy import StrategyRules
from dtj.api.torch_distributed import TORCH_DISTRIBUTED
from dtj.plan.gang import with_gang
from dtj.plan.horovod import horovod_plan
from dtj.plan.model import Plan
from dtj.plan.mpijob import mpijob_plan
from dtj.plan.parameter_server import parameter_server_plan
from dtj.plan.pods import metadata, with_pods
from dtj.plan.recipe import START_SCRIPT
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
    if job.pod_user != pod_user:
        job = replace(job, pod_user=pod_user)
    plan = with_gang(job, plan_without_gang(job, tensorboard_image))
    if operator_namespace is None:
        return plan
    return replace(plan, network_policy=network_policy(job, operator_namespace))


def plan_without_gang(job: Job, tensorboard_image: str = DEFAULT_IMAGE) -> Plan:
    """Return the same plan without gang scheduling, whatever the job's schedulingPolicy says."""
    plan = with_pods(job, PLANS[job.spec.strategy](job))
    return replace(plan, tensorboard=tensorboard(job, tensorboard_image))


# The plans of the last jobs. A plan depends on few fields of a status, so that most passes need no new plan.

MOST_REPLICAS = 20_000
"""The largest number of replicas in all cached plans together. Each replica takes less than 1 kB."""
# A plan keeps the templates of its job as data. Long templates count as more replicas: data takes four times the
# characters of the job file, and at least 64 bytes more for each line, which has one field or list entry.
_CHARACTERS_A_REPLICA = 250
_LINES_A_REPLICA = 5


class PlanCache:
    """Returns the plans that `plan` makes, and caches those of the jobs that it planned last.

    Callers must not change a plan. Several threads may call the cache. `plan` sees only those fields of a job's
    status that the cache compares, so a plan cannot depend on other fields. The cache always holds the last plan,
    whatever the plan's size, but no plan of a job that has ended: such a job has few passes, and is kept for long.
    """

    def __init__(self, plan: Callable[[Job], Plan], most_replicas: int = MOST_REPLICAS) -> None:
        """Cache the plans of `plan`. most_replicas: replicas in all cached plans together."""
        self._plan = plan
        self._most_replicas = most_replicas
        self._plans: OrderedDict[str, tuple[Mapping[str, Any], Plan, int]] = OrderedDict()
        """What each plan was made from, the plan, and its weight, by the uid of the job."""
        self._replicas = 0
        self._lock = Lock()

    def __call__(self, job: Job) -> Plan:
        """Return the plan of a job."""
        status = JobStatus(
            # A job without an attempt gets the plan of its first attempt, so that the cached plan stays valid when
            # the first attempt begins.
            attempt=job.attempt,
            replica_attempts=job.status.replica_attempts,
            node_failures=job.status.node_failures,
            ssh_secret=job.status.ssh_secret,
            restarts=job.status.restarts,
            skipped_checkpoints=job.status.skipped_checkpoints,
            resumed_from=job.status.resumed_from,
            # The plan of the first attempt does not need the start time. Leave it out: the status gets the time
            # later, and the cached plan stays valid.
            start_time=job.status.start_time if job.attempt > 1 else None,
        )
        ended = job.finished
        job = replace(job, status=status)
        if ended:
            self._forget(job.uid)
            return self._plan(job)
        needed = vars(job)
        before, plan, weighs = self._plans.get(job.uid, ({}, None, 0))
        if plan is None or before != needed:
            lasts = plan is not None and not plan.mpijob and _differs_in_pods(before, needed)
            plan = self._with_new_pods(job, plan) if plan and lasts else self._plan(job)
            weighs = weight(plan)
        with self._lock:
            self._drop(job.uid)
            self._plans[job.uid] = (needed, plan, weighs)
            self._replicas += weighs
            while self._replicas > self._most_replicas and len(self._plans) > 1:
                _, (_, _, oldest) = self._plans.popitem(last=False)
                self._replicas -= oldest
        return plan

    def _with_new_pods(self, job: Job, plan: Plan) -> Plan:
        """Return the plan with functions that make the changed job's pods. Only their first call plans the job: after
        a restart in place, for example, no pod is made.
        """
        made = cache(lambda: self._plan(job))
        return replace(
            plan, pod=lambda replica: made().pod(replica), recipe=lambda replica: made().recipe(replica)
        )

    def _forget(self, uid: str) -> None:
        with self._lock:
            self._drop(uid)

    def _drop(self, uid: str) -> None:
        _, _, weighs = self._plans.pop(uid, (None, None, 0))
        self._replicas -= weighs


_OF_PODS = ("restarts", "node_failures")
"""The fields of a status on which only the manifests of pods depend."""


def _differs_in_pods(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether the plans of two jobs differ only in the manifests of pods."""
    status = now["status"].model_copy(update={name: getattr(before["status"], name) for name in _OF_PODS})
    return before == {**now, "status": status}


def weight(plan: Plan) -> int:
    """Return how many replicas a plan counts as."""
    # Do not weigh the start script: all plans share one copy of the text.
    texts: list[str] = [text for name, text in plan.config["data"].items() if name != START_SCRIPT]
    lines = sum(text.count("\n") for text in texts)
    data = sum(map(len, texts)) // _CHARACTERS_A_REPLICA + lines // _LINES_A_REPLICA
    return len(plan.shape.replicas) + data
