"""The plan of a job, whatever its strategy."""

from __future__ import annotations

from dtj.api.job import Job
from dtj.api.spec import Strategy
from dtj.plan.horovod import horovod_plan
from dtj.plan.model import Plan
from dtj.plan.parameter_server import parameter_server_plan


def plan_job(job: Job) -> Plan:
    """The objects that a job without faults needs now, in the attempt that its status says."""
    match job.spec.strategy:
        case Strategy.HOROVOD:
            return horovod_plan(job)
        case Strategy.PARAMETER_SERVER:
            return parameter_server_plan(job)
