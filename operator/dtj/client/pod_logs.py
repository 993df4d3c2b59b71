"""The output of a job: the logs of its pods, read once or followed over restarts, or else the logs in its bucket.

`async_client` calls `lines_of`. `logs` chooses pods and files, and reads the bucket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from heapq import merge

from dtj.api.errors import DtjError, NotFound, Unreachable
from dtj.api.job import Job
from dtj.api.pod_template import TRAINER_CONTAINER
from dtj.client.credentials import artifacts_of
from dtj.client.log_rounds import LogRounds, RoundChoice
from dtj.client.logs import LogSelection, bucket_log, pod_line, stored_logs
from dtj.client.objects import LogLine, Pod, pod_of
from dtj.client.resource import DistributedTrainingJob
from dtj.client.watching import Patience
from dtj.cluster.interface import ApiError
from dtj.cluster.user_api import UserApi

_LOOK_SECONDS = 1.0
"""Seconds between two requests for the pods of a new attempt."""
_LINES_AHEAD = 10_000
"""Maximum number of lines in the queue. Readers wait while the queue is full."""
_MOST_MISSED = 100
"""Maximum number of pods whose output a follower reads from the bucket at the end. After the end, `dtj logs` without
--follow prints the output of all pods."""
_NO_TIME = datetime.min.replace(tzinfo=UTC)
_Lines = asyncio.Queue[LogLine | ApiError | None]
"""The lines of all pods in the order of arrival, an error that ends the stream, and None after the last line."""


@dataclass(frozen=True)
class _Printed:
    """What a pod has printed so far."""

    lines: list[LogLine]
    """The lines that the query selects."""
    last: datetime | None
    """The time of the last line, selected or not."""
    log: LogRounds
    """The rounds of the log so far, with which the reader of the next lines continues."""


class PodLogs:
    """Reads the output of a job from its pods."""

    def __init__(self, api: UserApi, selection: LogSelection) -> None:
        self._api = api
        self._selection = selection
        self._job = selection.job
        self._tail = selection.query.tail
        self._of_round = selection.query.round is not None
        self._rounds = RoundChoice(selection.job.name, selection.query)
        self.read: set[tuple[str, int]] = set()
        """Role and index of the pods whose logs could be read."""

    async def pods(self) -> list[Pod]:
        """List the pods with selected lines."""
        pods = map(pod_of, await self._api.list_pods(self._job.namespace, self._job.name))
        return [pod for pod in pods if self._selection.has_pod(pod.role, pod.index)]

    async def printed(self, pods: Sequence[Pod]) -> Iterator[LogLine]:
        """Return the lines that the pods have printed so far, ordered by time.

        Raises NotFound if the logs do not have the query's round.
        """
        logs = await asyncio.gather(*map(self._printed, pods))
        self._rounds.check()
        return in_order([log.lines for log in logs])

    async def followed(self) -> AsyncGenerator[LogLine, None]:
        """Yield the lines of the present pods and of later pods, until the job has finished or is deleted.

        Of a round, yield the lines until the round is over. Raises NotFound if the logs do not have the query's
        round.
        """
        lines: _Lines = asyncio.Queue(_LINES_AHEAD)
        readers: dict[str, asyncio.Task[None]] = {}
        finder = asyncio.create_task(self._read_all(lines, readers))
        try:
            while (line := await lines.get()) is not None:
                if isinstance(line, ApiError):
                    raise line
                yield line
            self._rounds.check()
        finally:
            tasks = [finder, *readers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def missed(self, job: Job) -> list[LogSelection]:
        """Return selections of the pods whose logs could not be read. job: the job as it ended."""
        return replace(self._selection, job=job).of_others(self.read)

    async def _read_all(self, lines: _Lines, readers: dict[str, asyncio.Task[None]]) -> None:
        """Start one reader for each pod. Put None after the job has finished and all readers have ended.

        readers: the readers by uid of the pod. Of a round, those by name: the pods of a later attempt, which have the
        same names, do not have this round.
        """
        patience = Patience()
        ended = False
        while not ended:
            try:
                # Read the job before the pods: a finished job gets no more pods, so the list of pods is complete.
                ended = await self._has_ended()
                for pod in await self.pods():
                    key = pod.name if self._of_round else pod.uid
                    if key not in readers and pod.phase != "Pending":
                        readers[key] = asyncio.create_task(self._read(pod, lines))
                ended = ended or (self._of_round and _all_done(readers.values()))
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

    async def _printed(self, pod: Pod) -> _Printed:
        # Let the kubelet cut off earlier lines only if the query selects every line of the pod: otherwise, the last
        # lines of the pod may contain fewer selected lines than `tail`.
        tail = self._tail if self._selection.of_whole_pods else None
        lines: deque[LogLine] = deque(maxlen=None if self._of_round else self._tail)
        source = f"{pod.role}-{pod.index}"
        last = datetime.now(UTC) if self._tail == 0 else None
        try:
            async for text in self._log(pod, tail=tail):
                line = pod_line(text, source)
                last = line.time or last
                if self._of_round or self._selection.wants(line.source):
                    lines.append(line)
        except ApiError as error:
            # Status 400 means that the container has not started.
            if error.status not in (400, 404):
                raise
        # Pass the present lines: the kubelet may have removed the beginning of the log by rotation.
        log = self._rounds.log(source, lines)
        if self._of_round:
            chosen = (line for line in lines if log.has(line) and self._selection.wants(line.source))
            lines = deque(chosen, self._tail)
        return _Printed(list(lines), last, log)

    async def _follow(self, pod: Pod) -> AsyncGenerator[LogLine, None]:
        source = f"{pod.role}-{pod.index}"
        last: datetime | None = None
        log = self._rounds.log(source)
        if self._tail is not None or self._of_round:
            printed = await self._printed(pod)
            last, log = printed.last, printed.log
            for line in printed.lines:
                yield line
        patience = Patience()
        while not log.is_over():
            resumed_after, cut = last, False
            since = (
                None
                if resumed_after is None
                else resumed_after.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            )
            try:
                async for text in self._log(pod, follow=True, since=since):
                    self.read.add((pod.role, pod.index))
                    line = pod_line(text, source)
                    if resumed_after and line.time and line.time <= resumed_after:
                        continue
                    last = line.time or last
                    patience.succeeded()
                    if log.has(line) and self._selection.wants(line.source):
                        yield line
                    if log.is_over():
                        return
                self.read.add((pod.role, pod.index))
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
        """Return whether the pod with this uid still runs, or may have lines that the reader has not read.

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


def _all_done(readers: Collection[asyncio.Task[None]]) -> bool:
    return bool(readers) and all(reader.done() for reader in readers)


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


async def lines_of(
    api: UserApi, job: DistributedTrainingJob, selection: LogSelection
) -> AsyncGenerator[LogLine, None]:
    """Yield the output of a job, as AsyncClient.logs documents. Raises ApiError and DtjError."""
    logs = PodLogs(api, selection)
    if selection.query.follow and not job.status.finished:
        async with aclosing(logs.followed()) as lines:
            async for line in lines:
                yield line
        for line in await _missed_lines(api, job, logs):
            yield line
        return
    pods = [pod for pod in await logs.pods() if selection.query.attempt in (None, pod.attempt)]
    bucket_lines = await _bucket_lines(api, job, selection, pods)
    for line in await logs.printed(pods) if bucket_lines is None else bucket_lines:
        yield line


async def _missed_lines(api: UserApi, job: DistributedTrainingJob, logs: PodLogs) -> list[LogLine]:
    """Return the lines, in the bucket, of pods that were gone before a follower could read their logs.

    For example, the operator soon removes a worker after the chief has succeeded. Empty if the bucket can't be read.
    """
    try:
        manifests, _ = await api.list_jobs(job.namespace, job.name)
        (ended,) = map(DistributedTrainingJob.from_cluster, manifests)
        missed = logs.missed(ended.job)
        if not missed or ended.uid != job.uid or ended.status.all_running_time is None:
            return []
        artifacts = await artifacts_of(api, ended)
    except (ApiError, DtjError, ValueError):
        return []

    def read() -> Iterator[LogLine]:
        with suppress(Unreachable):
            sizes = stored_logs(artifacts)
            for selection in missed[:_MOST_MISSED]:
                with suppress(NotFound):
                    yield from bucket_log(artifacts, selection, sizes)

    return await asyncio.to_thread(lambda: [*read()])


async def _bucket_lines(
    api: UserApi, job: DistributedTrainingJob, selection: LogSelection, pods: Sequence[Pod]
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
