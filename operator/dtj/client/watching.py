"""A watch of one job, which reconnects after connection failures, and the wait for the end of a deletion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from dtj.client.failures import missing
from dtj.client.resource import DistributedTrainingJob
from dtj.cluster.interface import ApiError
from dtj.cluster.user_api import UserApi

PATIENCE_SECONDS = 120.0
"""Seconds without a successful request after which an error of the API server is raised."""
_LOOK_SECONDS = 0.5
"""Seconds between two requests for a job that is being deleted."""
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.5, 10.0


class Patience:
    """Waits between retries of a request, with a backoff, for up to PATIENCE_SECONDS without success."""

    def __init__(self) -> None:
        self.succeeded()

    def succeeded(self) -> None:
        """Restart the time limit and the backoff after a success."""
        self._since = time.monotonic()
        self._wait = _FIRST_WAIT_SECONDS

    async def after(self, error: ApiError) -> None:
        """Wait before the next retry. Raises the error if the error is permanent, or after PATIENCE_SECONDS."""
        passing = error.status in (0, 410, 429) or error.status >= 500
        if not passing or time.monotonic() - self._since > PATIENCE_SECONDS:
            raise error
        await asyncio.sleep(error.retry_after or self._wait)
        self._wait = min(2 * self._wait, _LONGEST_WAIT_SECONDS)


async def changes(
    api: UserApi, namespace: str, name: str, *, patient: bool = False
) -> AsyncGenerator[DistributedTrainingJob, None]:
    """Yield the current state of a job, then the state after each change, until the job is deleted.

    The watch also ends if another job with the same name replaced the job.
    patient: whether to retry if the first request fails.
    Raises NotFound if the job does not exist at first, and ApiError if the API server does not answer for
    PATIENCE_SECONDS.
    """
    last: DistributedTrainingJob | None = None
    patience = Patience()
    while True:
        try:
            manifests, version = await api.list_jobs(namespace, name)
            patience.succeeded()
            if not manifests and last is None:
                raise missing(name, namespace)
            if not manifests or (last and manifests[0]["metadata"]["uid"] != last.uid):
                return
            job = DistributedTrainingJob.from_cluster(manifests[0])
            if last is None or job.metadata.resource_version != last.metadata.resource_version:
                last = job
                yield job
            async for kind, manifest in api.watch_job(namespace, name, version):
                patience.succeeded()
                if kind == "DELETED":
                    return
                last = DistributedTrainingJob.from_cluster(manifest)
                yield last
            # Wait before the next watch, because a proxy may end every watch immediately.
            await asyncio.sleep(_FIRST_WAIT_SECONDS)
        except ApiError as error:
            if last is None and not patient:
                raise
            await patience.after(error)


async def until_gone(api: UserApi, namespace: str, name: str) -> None:
    """Wait until a job and its pods no longer exist."""
    while (await api.list_jobs(namespace, name))[0] or await api.list_pods(namespace, name):
        await asyncio.sleep(_LOOK_SECONDS)
