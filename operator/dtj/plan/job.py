"""The plan of a job of any strategy."""

from __future__ import annotations

from dataclasses import replace

from dtj.api.job import POD_USER, Job
from dtj.plan.gang import with_gang
from dtj.plan.model import Plan
from dtj.plan.network_policy import network_policy
from dtj.plan.strategies import PLANS
from dtj.plan.tensorboard import DEFAULT_IMAGE, tensorboard


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
    return replace(PLANS[job.spec.strategy](job), tensorboard=tensorboard(job, tensorboard_image))
