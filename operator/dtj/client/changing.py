"""Changes of a job's spec: suspend, resume, and the numbers of replicas. The clients call these functions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from dtj.api.errors import DtjError, Unusable
from dtj.api.job import Manifest
from dtj.api.spec import Resume
from dtj.api.status import ConditionType
from dtj.client.credentials import artifacts_of
from dtj.client.failures import explained
from dtj.client.resource import DistributedTrainingJob, InvalidJobError
from dtj.cluster.user_api import UserApi
from dtj.status.suspension import is_deactivated

T = TypeVar("T")
_MORE_SECONDS = 5.0
"""Seconds for which a request may continue after its caller was cancelled."""


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns. If the caller is cancelled meanwhile, `work` has _MORE_SECONDS to end."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if (await asyncio.wait([task], timeout=_MORE_SECONDS))[0]:
            task.result()  # Raise the error of `work`, if any, instead of CancelledError.
        task.cancel()
        raise


async def change(api: UserApi, job: DistributedTrainingJob, spec: Manifest) -> DistributedTrainingJob:
    """Merge `spec` into the spec of a job. Raises NotFound if another job has replaced the job under its name."""
    patch = {"metadata": {"uid": job.uid}, "spec": spec}
    with explained(api.host, job.namespace, job.name):
        return DistributedTrainingJob.from_cluster(await api.patch_job(job.namespace, job.name, patch))


async def set_suspend(api: UserApi, job: DistributedTrainingJob, value: bool) -> DistributedTrainingJob:
    """Set runPolicy.suspend. Raises as `change`, and DtjError if the job has finished."""
    if job.status.finished:
        raise DtjError(f"{job.name} is {job.status.phase}: a finished job can't be suspended or resumed")
    return await change(api, job, {"runPolicy": {"suspend": value}})


async def resume(
    api: UserApi, job: DistributedTrainingJob, checkpoint: int | None = None, endpoint: str | None = None
) -> DistributedTrainingJob:
    """Resume a suspended job; see AsyncClient.resume."""
    if checkpoint is not None:
        suspended = job.spec.run_policy.suspend and job.status.holds(ConditionType.SUSPENDED)
        if not suspended and not is_deactivated(job.status):
            raise Unusable(
                f"{job.name} is not suspended, and only a suspended job can go back to checkpoint {checkpoint}",
                f"dtj suspend {job.name} && dtj wait {job.name} --for=Suspended",
            )
        artifacts = await artifacts_of(api, job, endpoint)
        uri = (await asyncio.to_thread(artifacts.checkpoint, checkpoint)).uri
        known = job.status.resumed_from
        before = known.uri if known else job.spec.artifacts and job.spec.artifacts.resume_uri
        if before == uri:
            uri += "/"  # Change the value: the operator goes back to a checkpoint once for each value of the field.
        artifacts_spec = {"resume": Resume.FROM_URI, "resumeUri": uri}
        return await change(api, job, {"artifacts": artifacts_spec, "runPolicy": {"suspend": False}})
    if is_deactivated(job.status) and not job.spec.run_policy.suspend:
        # Kueue has deactivated the job, whose spec already has suspend=false. Set true, then false: the operator
        # resumes the job only on a change of the spec.
        await set_suspend(api, job, True)
    return await set_suspend(api, job, False)


def scaled(job: DistributedTrainingJob, replicas: Mapping[str, int]) -> Manifest:
    """Return the change of `replicaSpecs` that gives a job these numbers of replicas.

    Raises DtjError, Unusable or InvalidJobError if the job can't have these numbers.
    """
    if job.status.finished:
        raise DtjError(f"{job.name} is {job.status.phase}: the replicas of a finished job can't change")
    manifest = job.to_manifest()
    roles = manifest["spec"]["replicaSpecs"]
    if not replicas:
        raise Unusable("no role is given", "give the number of replicas by role, e.g. worker=4")
    for role, count in replicas.items():
        if role not in roles:
            raise Unusable(f"{job.name} has no role {role}: its roles are {', '.join(roles)}")
        roles[role] = {**roles[role], "replicas": count}
    if job_faults := DistributedTrainingJob.from_manifest(manifest).faults():
        raise InvalidJobError(job.name, job_faults)
    return {role: {"replicas": count} for role, count in replicas.items()}
