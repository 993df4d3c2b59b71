"""Changes of a job's spec."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from dtj.api.condition_types import ConditionType
from dtj.api.errors import DtjError, Unusable
from dtj.api.job import Manifest
from dtj.api.spec import Resume
from dtj.client.credentials import artifacts_of
from dtj.client.failures import explained
from dtj.client.resource import DistributedTrainingJob
from dtj.cluster.user_api import UserApi
from dtj.status.suspension import is_deactivated

T = TypeVar("T")
_MORE_SECONDS = 5.0
"""How long work may go on after its caller was cancelled."""


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns. If the caller is cancelled meanwhile, `work` has _MORE_SECONDS to end."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if (await asyncio.wait([task], timeout=_MORE_SECONDS))[0]:
            task.result()  # An error of the work says more than CancelledError.
        task.cancel()
        raise


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
            uri += "/"  # The operator goes back once for each value of the field.
        artifacts_spec = {"resume": Resume.FROM_URI, "resumeUri": uri}
        return await change(api, job, {"artifacts": artifacts_spec, "runPolicy": {"suspend": False}})
    if is_deactivated(job.status) and not job.spec.run_policy.suspend:
        # The spec of the deactivated job has suspend=false. Only a change of the spec requests the resumption.
        await set_suspend(api, job, True)
    return await set_suspend(api, job, False)
