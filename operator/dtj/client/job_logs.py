"""The output of a job, from its pods or its bucket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from dtj.api.errors import NotFound, Unreachable
from dtj.client.bucket_logs import bucket_log
from dtj.client.credentials import artifacts_of
from dtj.client.log_source import Selection
from dtj.client.pod_logs import PodLogs
from dtj.client.resource import DistributedTrainingJob
from dtj.client.views import LogLine, Pod
from dtj.cluster.user_api import UserApi


async def lines_of(
    api: UserApi, job: DistributedTrainingJob, selection: Selection
) -> AsyncGenerator[LogLine, None]:
    """Yield the output of a job, as AsyncClient.logs documents. Raises ApiError and DtjError."""
    logs = PodLogs(api, selection)
    if selection.query.follow and not job.status.finished:
        async with aclosing(logs.followed()) as lines:
            async for line in lines:
                yield line
        return
    pods = [pod for pod in await logs.pods() if selection.query.attempt in (None, pod.attempt)]
    bucket_lines = await _bucket_lines(api, job, selection, pods)
    for line in await logs.printed(pods) if bucket_lines is None else bucket_lines:
        yield line


async def _bucket_lines(
    api: UserApi, job: DistributedTrainingJob, selection: Selection, pods: Sequence[Pod]
) -> list[LogLine] | None:
    """Return the lines in the bucket, or None if the caller must read the lines of the pods.

    The pods are the source if the pods have all lines. If at least one selected pod exists, the pods are also the
    source while the job runs, or if the bucket can't be read.
    """
    if selection.has_all(pods) or (pods and not job.status.finished):
        return None
    try:
        artifacts = await artifacts_of(api, job)
        return await asyncio.to_thread(lambda: [*bucket_log(artifacts, selection)])
    except (NotFound, Unreachable):
        if pods:
            return None
        raise
