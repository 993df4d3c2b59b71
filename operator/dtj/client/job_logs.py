"""The lines of a job, from where they are: its pods or its bucket."""

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
    """What a job printed, and with `follow` prints, as AsyncClient.logs says. Raises ApiError and DtjError."""
    logs = PodLogs(api, selection)
    if selection.query.follow and not job.status.finished:
        async with aclosing(logs.followed()) as lines:
            async for line in lines:
                yield line
        return
    pods = [pod for pod in await logs.pods() if selection.query.attempt in (None, pod.attempt)]
    kept = await _kept(api, job, selection, pods)
    for line in await logs.printed(pods) if kept is None else kept:
        yield line


async def _kept(
    api: UserApi, job: DistributedTrainingJob, selection: Selection, pods: Sequence[Pod]
) -> list[LogLine] | None:
    """The lines in the bucket, where pods don't have them; None where they do, or have at least some."""
    if selection.has_all(pods) or (pods and not job.status.finished):
        return None
    try:
        artifacts = await artifacts_of(api, job)
        return await asyncio.to_thread(lambda: [*bucket_log(artifacts, selection)])
    except (NotFound, Unreachable):
        if pods:
            return None
        raise
