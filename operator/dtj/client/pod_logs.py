"""The logs of a job's pods: what is there, and what comes, over restarts."""

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
"""Between looks for pods of a new attempt."""
_LINES_AHEAD = 10_000
_NO_TIME = datetime.min.replace(tzinfo=UTC)
_Lines = asyncio.Queue[LogLine | ApiError | None]
"""The lines of all pods as they come, an error that ends them, and None after the last."""


class PodLogs:
    """The lines of a job that its pods have."""

    def __init__(self, api: UserApi, selection: Selection) -> None:
        self._api = api
        self._selection = selection
        self._job = selection.job
        self._tail = selection.query.tail

    async def pods(self) -> list[Pod]:
        """The pods with lines that are asked for."""
        pods = map(pod_of, await self._api.list_pods(self._job.namespace, self._job.name))
        return [pod for pod in pods if self._selection.has_pod(pod.role, pod.index)]

    async def printed(self, pods: Sequence[Pod]) -> Iterator[LogLine]:
        """What they printed up to now, in the order of time."""
        return in_order(await asyncio.gather(*map(self._printed, pods)))

    async def followed(self) -> AsyncGenerator[LogLine, None]:
        """What the pods printed, and what they and those after them print, until the job has ended or is deleted."""
        lines: _Lines = asyncio.Queue(_LINES_AHEAD)
        readers: dict[str, asyncio.Task[None]] = {}
        looking = asyncio.create_task(self._read_all(lines, readers))
        try:
            while (line := await lines.get()) is not None:
                if isinstance(line, ApiError):
                    raise line
                yield line
        finally:
            tasks = [looking, *readers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_all(self, lines: _Lines, readers: dict[str, asyncio.Task[None]]) -> None:
        """Start a reader of each pod that comes, by its uid; after the end of the job and of all readers put None."""
        patience = Patience()
        ended = False
        while not ended:
            try:
                # The job is asked for before the pods: the pods of an ended job are the last ones.
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
        # The last lines of one rank are not among as many last ones of its pod.
        tail = self._tail if self._selection.of_whole_pods else None
        lines: deque[LogLine] = deque(maxlen=self._tail)
        try:
            async for text in self._log(pod, tail=tail):
                line = pod_line(text, f"{pod.role}-{pod.index}")
                if self._selection.wants(line.source):
                    lines.append(line)
        except ApiError as error:
            # 400: its container has not started.
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
            begun, cut = last, False
            since = None if begun is None else begun.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            try:
                async for text in self._log(pod, follow=True, since=since):
                    line = pod_line(text, source)
                    if begun is not None and line.time is not None and line.time <= begun:
                        continue
                    last = line.time or last
                    patience.succeeded()
                    if self._selection.wants(line.source):
                        yield line
            except ApiError as error:
                if error.status == 404:
                    return
                # 400: its container has not started.
                if error.status != 400:
                    await patience.after(error)
                cut = True
            if not await self._has_more(pod, cut):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _has_more(self, pod: Pod, cut: bool) -> bool:
        """Whether that very pod, and not another of its name, still prints, or has what a cut has kept back."""
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
        found, _ = await self._api.list_jobs(self._job.namespace, self._job.name)
        if not found or found[0]["metadata"]["uid"] != self._job.uid:
            return True
        return bool((found[0].get("status") or {}).get("completionTime"))


def in_order(logs: Sequence[Sequence[LogLine]]) -> Iterator[LogLine]:
    """The lines of several logs by time. Those of one log keep their order; one without a time stays with the line
    before it.
    """
    return (line for _, line in merge(*map(_timed, logs), key=lambda pair: pair[0]))


def _timed(log: Sequence[LogLine]) -> Iterator[tuple[datetime, LogLine]]:
    time = _NO_TIME
    for line in log:
        time = max(time, line.time or time)
        yield time, line
