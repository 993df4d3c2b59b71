"""Changes of a job's spec."""

from __future__ import annotations

from dtj.api.errors import DtjError
from dtj.api.job import Manifest
from dtj.client.failures import explained
from dtj.client.resource import DistributedTrainingJob
from dtj.cluster.user_api import UserApi


async def change(api: UserApi, job: DistributedTrainingJob, spec: Manifest) -> DistributedTrainingJob:
    """Merge `spec` into the job's. Raises NotFound if another job has replaced the job under its name."""
    patch = {"metadata": {"uid": job.uid}, "spec": spec}
    with explained(api.host, job.namespace, job.name):
        return DistributedTrainingJob.from_cluster(await api.patch_job(job.namespace, job.name, patch))


async def set_suspend(api: UserApi, job: DistributedTrainingJob, value: bool) -> DistributedTrainingJob:
    """Set runPolicy.suspend. Raises as `change`, and DtjError if the job has finished."""
    if job.status.finished:
        raise DtjError(f"{job.name} is {job.status.phase}: a finished job can't be suspended or resumed")
    return await change(api, job, {"runPolicy": {"suspend": value}})
