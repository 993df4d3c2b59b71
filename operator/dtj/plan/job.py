"""The plan of a job of any strategy."""

from __future__ import annotations

from dataclasses import replace

from dtj.api.job import POD_USER, Job
from dtj.plan.gang import in_a_gang
from dtj.plan.model import Plan
from dtj.plan.strategies import PLANS
from dtj.plan.tensorboard import DEFAULT_IMAGE, tensorboard


def plan_job(job: Job, tensorboard_image: str = DEFAULT_IMAGE, pod_user: int | None = POD_USER) -> Plan:
    """Return the objects that a job without faults needs in the attempt of its status.

    pod_user: user and group of pods whose template sets none; None: pods set no user.
    """
    job = replace(job, pod_user=pod_user)
    return in_a_gang(job, plan_without_gang(job, tensorboard_image))


def plan_without_gang(job: Job, tensorboard_image: str = DEFAULT_IMAGE) -> Plan:
    """Return the same plan without gang scheduling, whatever the job's schedulingPolicy says."""
    return replace(PLANS[job.spec.strategy](job), tensorboard=tensorboard(job, tensorboard_image))
