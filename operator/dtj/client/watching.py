"""The changes of a job, over cut connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from dtj.client.failures import missing
from dtj.client.resource import DistributedTrainingJob
from dtj.cluster.port import ApiError
from dtj.cluster.user_api import UserApi

PATIENCE_SECONDS = 120.0
"""How long the API server may be away."""
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.5, 10.0


class Patience:
    """Waits between tries of what may fail for a while: `spent` after PATIENCE_SECONDS without success."""

    def __init__(self) -> None:
        self.succeeded()

    def succeeded(self) -> None:
        """All is well: the time counts anew."""
        self._since = time.monotonic()
        self._wait = _FIRST_WAIT_SECONDS

    async def after(self, error: ApiError) -> None:
        """Wait before the next try; raises the error where it won't go away, or all time is spent."""
        passing = error.status in (0, 410, 429) or error.status >= 500
        if not passing or time.monotonic() - self._since > PATIENCE_SECONDS:
            raise error
        await asyncio.sleep(error.retry_after or self._wait)
        self._wait = min(2 * self._wait, _LONGEST_WAIT_SECONDS)


async def changes(
    api: UserApi, namespace: str, name: str, *, patient: bool = False
) -> AsyncGenerator[DistributedTrainingJob, None]:
    """The job as it is now, then after each change; ends when it is deleted, also if another has its name then.

    Raises NotFound where there is none at first, ApiError when the API server is away for PATIENCE_SECONDS, or at
    first where the caller is not patient.
    """
    last: DistributedTrainingJob | None = None
    patience = Patience()
    while True:
        try:
            found, version = await api.list_jobs(namespace, name)
            patience.succeeded()
            if not found and last is None:
                raise missing(name, namespace)
            if not found or (last and found[0]["metadata"]["uid"] != last.uid):
                return
            job = DistributedTrainingJob.from_cluster(found[0])
            if last is None or job.metadata.resource_version != last.metadata.resource_version:
                last = job
                yield job
            async for kind, manifest in api.watch_job(namespace, name, version):
                patience.succeeded()
                if kind == "DELETED":
                    return
                last = DistributedTrainingJob.from_cluster(manifest)
                yield last
            # A proxy may end every watch at once.
            await asyncio.sleep(_FIRST_WAIT_SECONDS)
        except ApiError as error:
            if last is None and not patient:
                raise
            await patience.after(error)
