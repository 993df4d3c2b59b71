"""The logs of the pods of a job, read once or followed over restarts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from heapq import merge

from dtj.api.pod_template import TRAINER_CONTAINER
from dtj.client.log_source import Selection, pod_line
from dtj.client.views import LogLine, Pod, pod_of
from dtj.client.watching import Patience
from dtj.cluster.port import ApiError
from dtj.cluster.user_api import UserApi

_LOOK_SECONDS = 1.0
"""Seconds between two requests for the pods of a new attempt."""
_LINES_AHEAD = 10_000
"""Maximum number of lines in the queue. Readers wait while the queue is full."""
_NO_TIME = datetime.min.replace(tzinfo=UTC)
_Lines = asyncio.Queue[LogLine | ApiError | None]
"""The lines of all pods in the order of arrival, an error that ends the stream, and None after the last line."""


class PodLogs:
    """Reads the output of a job from its pods."""

    def __init__(self, api: UserApi, selection: Selection) -> None:
        self._api = api
        self._selection = selection
        self._job = selection.job
        self._tail = selection.query.tail

    async def pods(self) -> list[Pod]:
        """List the pods with selected lines."""
        pods = map(pod_of, await self._api.list_pods(self._job.namespace, self._job.name))
        return [pod for pod in pods if self._selection.has_pod(pod.role, pod.index)]

    async def printed(self, pods: Sequence[Pod]) -> Iterator[LogLine]:
        """Return the lines that the pods have printed so far, ordered by time."""
        return in_order(await asyncio.gather(*map(self._printed, pods)))

    async def followed(self) -> AsyncGenerator[LogLine, None]:
        """Yield the lines of the present pods and of later pods, until the job has finished or is deleted."""
        lines: _Lines = asyncio.Queue(_LINES_AHEAD)
        readers: dict[str, asyncio.Task[None]] = {}
        finder = asyncio.create_task(self._read_all(lines, readers))
        try:
            while (line := await lines.get()) is not None:
                if isinstance(line, ApiError):
                    raise line
                yield line
        finally:
            tasks = [finder, *readers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_all(self, lines: _Lines, readers: dict[str, asyncio.Task[None]]) -> None:
        """Start one reader for each pod. Put None after the job has finished and all readers have ended.

        readers: the readers by uid of the pod.
        """
        patience = Patience()
        ended = False
        while not ended:
            try:
                # Read the job before the pods: a finished job gets no more pods, so the list of pods is complete.
                ended = await self._has_ended()
                for pod in await self.pods():
                    if pod.uid not in readers and pod.phase != "Pending":
                        readers[pod.uid] = asyncio.create_task(self._read(pod, lines))
                patience.succeeded()
            except ApiError as error:
                ended = False
                try:
                    await patience.after(error)
                except ApiError:
                    await lines.put(error)
            if not ended:
                await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.gather(*readers.values())
        await lines.put(None)

    async def _read(self, pod: Pod, lines: _Lines) -> None:
        try:
            async for line in self._follow(pod):
                await lines.put(line)
        except ApiError as error:
            await lines.put(error)

    async def _printed(self, pod: Pod) -> list[LogLine]:
        # If the query selects only some lines of the pod, the last lines of the pod may lack the last selected lines.
        tail = self._tail if self._selection.of_whole_pods else None
        lines: deque[LogLine] = deque(maxlen=self._tail)
        try:
            async for text in self._log(pod, tail=tail):
                line = pod_line(text, f"{pod.role}-{pod.index}")
                if self._selection.wants(line.source):
                    lines.append(line)
        except ApiError as error:
            # Status 400 means that the container has not started.
            if error.status not in (400, 404):
                raise
        return list(lines)

    async def _follow(self, pod: Pod) -> AsyncGenerator[LogLine, None]:
        source = f"{pod.role}-{pod.index}"
        last: datetime | None = None
        if self._tail is not None:
            for line in await self._printed(pod):
                last = line.time
                yield line
            if self._tail == 0:
                last = datetime.now(UTC)
        patience = Patience()
        while True:
            resumed_after, cut = last, False
            since = (
                None
                if resumed_after is None
                else resumed_after.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            )
            try:
                async for text in self._log(pod, follow=True, since=since):
                    line = pod_line(text, source)
                    if resumed_after and line.time and line.time <= resumed_after:
                        continue
                    last = line.time or last
                    patience.succeeded()
                    if self._selection.wants(line.source):
                        yield line
            except ApiError as error:
                if error.status == 404:
                    return
                # Status 400 means that the container has not started.
                if error.status != 400:
                    await patience.after(error)
                cut = True
            if not await self._has_more(pod, cut):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _has_more(self, pod: Pod, cut: bool) -> bool:
        """Return whether the pod with this uid still runs, or has lines that the reader missed.

        cut: whether the connection was cut before the end of the log.
        """
        patience = Patience()
        while True:
            try:
                now = next((p for p in await self.pods() if p.uid == pod.uid), None)
            except ApiError as error:
                await patience.after(error)
            else:
                return now is not None and (cut or (now.exit_code is None and now.phase == "Running"))

    def _log(
        self, pod: Pod, *, follow: bool = False, tail: int | None = None, since: str | None = None
    ) -> AsyncIterator[str]:
        namespace = self._job.namespace
        return self._api.pod_log(
            namespace, pod.name, TRAINER_CONTAINER, follow=follow, tail=tail, since=since
        )

    async def _has_ended(self) -> bool:
        manifests, _ = await self._api.list_jobs(self._job.namespace, self._job.name)
        if not manifests or manifests[0]["metadata"]["uid"] != self._job.uid:
            return True
        return bool((manifests[0].get("status") or {}).get("completionTime"))


def in_order(logs: Sequence[Sequence[LogLine]]) -> Iterator[LogLine]:
    """Merge the lines of several logs by time.

    The lines of one log keep their order. A line without a time stays with the preceding line of the same log.
    """
    return (line for _, line in merge(*map(_timed, logs), key=lambda pair: pair[0]))


def _timed(log: Sequence[LogLine]) -> Iterator[tuple[datetime, LogLine]]:
    time = _NO_TIME
    for line in log:
        time = max(time, line.time or time)
        yield time, line
