"""The plan of a job, whatever its strategy."""

from __future__ import annotations

from dataclasses import replace

from dtj.api.job import POD_USER, Job
from dtj.plan.gang import in_a_gang
from dtj.plan.model import Plan
from dtj.plan.strategies import PLANS
from dtj.plan.tensorboard import DEFAULT_IMAGE, tensorboard


def plan_job(job: Job, tensorboard_image: str = DEFAULT_IMAGE, pod_user: int | None = POD_USER) -> Plan:
    """The objects that a job without faults needs now, in the attempt that its status says.

    pod_user: user and group of pods whose template names none; None: they name none.
    """
    job = replace(job, pod_user=pod_user)
    return in_a_gang(job, plan_without_gang(job, tensorboard_image))


def plan_without_gang(job: Job, tensorboard_image: str = DEFAULT_IMAGE) -> Plan:
    """The same where nobody else places the pods, whatever the job's schedulingPolicy says."""
    return replace(PLANS[job.spec.strategy](job), tensorboard=tensorboard(job, tensorboard_image))
