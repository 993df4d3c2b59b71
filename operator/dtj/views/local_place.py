"""A run of `dtj run` on this machine as a `Place`, the wait for its end, and the jobs of all runs.

`dtj.local` carries out the runs and keeps their files.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path

from dtj.api.errors import DtjError, NotFound
from dtj.api.status import ConditionType
from dtj.client import Artifacts, DistributedTrainingJob, JobEvent, LogLine, LogQuery, Pod
from dtj.client.code_files import unpack_code
from dtj.client.log_rounds import LogRounds, RoundChoice
from dtj.client.logs import LogSelection, bucket_log, file_line
from dtj.client.objects import read_event
from dtj.client.resource import decided, never, readable, too_late
from dtj.client.store_environment import store_environment
from dtj.local.output import text_from
from dtj.local.runs import Run, Runs
from dtj_trainer.artifacts.s3 import parse_s3_uri

_POLL_SECONDS = 0.3
NO_PROCESS = "no process carries out this run"
CONTINUES = "`dtj run FILE --resume` continues from the newest checkpoint"


class LocalPlace:
    """Implements `dtj.views.places.Place` for a run."""

    def __init__(self, run: Run, home: Path) -> None:
        """Create the place. home: the folder of dtj, in which the embedded object store is."""
        self._run = run
        self._home = home

    def job(self) -> DistributedTrainingJob:
        """See `Place.job`."""
        return DistributedTrainingJob.from_cluster(self._run.manifest)

    def note(self) -> str | None:
        """See `Place.note`."""
        if self._run.pid is not None or self.job().status.finished:
            return None
        return f"{NO_PROCESS}: {CONTINUES}"

    def pods(self) -> list[Pod]:
        """See `Place.pods`."""
        return []

    def events(self) -> list[JobEvent]:
        """See `Place.events`."""
        return [read_event(event) for event in self._run.events]

    @contextmanager
    def artifacts(self, endpoint: str | None = None) -> Iterator[Artifacts]:
        """See `Place.artifacts`. Start the embedded store unless the store runs."""
        job = self.job()
        uri = job.artifacts_uri
        if uri is None:
            raise NotFound(f"{job.name} keeps no artifacts", "set spec.artifacts.uri in its job file")
        if self._run.embedded_store and endpoint is None:
            from dtj.local.object_store import open_store

            with open_store(self._home, [parse_s3_uri(uri).bucket]) as store:
                yield Artifacts(uri, store.environment)
            return
        yield Artifacts(uri, store_environment(job.spec, endpoint))

    def get_code(self, folder: Path, endpoint: str | None = None) -> list[Path]:
        """See `Place.get_code`."""
        with self.artifacts(endpoint) as artifacts:
            return unpack_code(self.job(), artifacts, folder)

    def logs(self, query: LogQuery) -> Iterator[LogLine]:
        """See `Place.logs`. Output files have the lines of all attempts; the bucket has the lines of each attempt.

        Of a round, the lines of the newest attempt are read.
        """
        selection = LogSelection(self._run.job, query)
        if query.attempt is not None:
            with self.artifacts() as artifacts:
                yield from bucket_log(artifacts, selection)
            return
        outputs = _Outputs(self._run, selection)
        yield from outputs.last(query.tail, query.tail_bytes)
        while query.follow:
            ended = self._run.pid is None
            yield from outputs.fresh()
            if ended or outputs.over:
                break
            time.sleep(_POLL_SECONDS)
        outputs.rounds.check()


def wait_for_run(run: Run, goal: ConditionType | None, timeout: float | None) -> DistributedTrainingJob:
    """Wait until a run has a condition, or has finished if `goal` is None. Return the job.

    timeout: seconds until TimedOut. Raises DtjError if the run finished without the condition, or if no process
    carries it out, and NotFound if another run of the name takes its place.
    """
    what = "its end" if goal is None else f"its condition {goal}"
    first = DistributedTrainingJob.from_cluster(run.manifest)
    deadline = inf if timeout is None else time.monotonic() + timeout
    while True:
        # Look for the process before the status is read: the process writes the end of the run before it exits.
        carried_out = run.pid is not None
        job = _unless_replaced(run, first, what)
        if job.status.finished if goal is None else decided(job, goal):
            break
        if not carried_out:
            raise DtjError(f"{job.name} is {job.status.phase}, and {NO_PROCESS}", CONTINUES)
        if time.monotonic() >= deadline:
            raise too_late(job, timeout, what)
        time.sleep(_POLL_SECONDS)
    if goal is not None and not job.status.holds(goal):
        raise never(job, goal)
    return job


def _unless_replaced(run: Run, first: DistributedTrainingJob, what: str) -> DistributedTrainingJob:
    with suppress(NotFound):  # A new run has removed the files of the old one.
        job = DistributedTrainingJob.from_cluster(run.manifest)
        if job.uid == first.uid:
            return job
    raise NotFound(f"another run of {first.name} has begun while waiting for {what}")


def local_jobs(home: Path, namespace: str | None) -> list[DistributedTrainingJob]:
    """Return the jobs of the runs of a namespace, or of all. Leave out a run that another run is about to replace."""
    jobs = []
    for run in Runs(home).list():
        if namespace in (None, run.namespace):
            with suppress(NotFound):
                jobs += readable([run.manifest])
    return jobs


def _line_within(file: Path, most: int) -> int:
    """Return the position of the first whole line in the last `most` bytes of a file; 0 for a smaller file."""
    begin = file.stat().st_size - most
    if begin <= 0:
        return 0
    with file.open("rb") as opened:
        opened.seek(begin)
        return begin + opened.read(most).find(b"\n") + 1


class _Outputs:
    """The output files of a run's replicas. Each read continues where the previous read ended."""

    def __init__(self, run: Run, selection: LogSelection) -> None:
        self._run = run
        self._selection = selection
        self._read: dict[str, int] = {}
        """The number of bytes read, by replica."""
        self.rounds = RoundChoice(selection.job.name, selection.query)
        self._of_round = selection.query.round is not None
        self._logs: dict[str, LogRounds] = {}
        self._attempt = max((run.output_begin(replica)[0] for replica in run.outputs), default=0)
        """The newest attempt at the first read. If the query has a round, only the lines of this attempt are read."""

    def last(self, tail: int | None, tail_bytes: int | None) -> Iterator[LogLine]:
        """Return the present output: the last `tail` lines of each replica, in its last `tail_bytes`."""
        for replica, file in self._wanted():
            if tail_bytes is not None and not self._of_round:
                self._read[replica] = _line_within(file, tail_bytes)
            yield from deque(self._lines(replica, file), tail)

    def fresh(self) -> Iterator[LogLine]:
        """Return the lines since the last read."""
        for replica, file in self._wanted():
            yield from self._lines(replica, file)

    @property
    def over(self) -> bool:
        """Whether no later line can be of the wanted round."""
        overs = [
            log.is_over() or self._run.output_begin(replica)[0] > self._attempt
            for replica, log in self._logs.items()
        ]
        return self._of_round and bool(overs) and all(overs)

    def _wanted(self) -> Iterator[tuple[str, Path]]:
        for replica, file in self._run.outputs.items():
            role, _, index = replica.rpartition("-")
            if not self._selection.has_pod(role, int(index)):
                continue
            if self._of_round and replica not in self._read:
                attempt, begin = self._run.output_begin(replica)
                if attempt != self._attempt:
                    continue
                self._read[replica] = begin
            yield replica, file

    def _lines(self, replica: str, file: Path) -> Iterator[LogLine]:
        with file.open("rb") as opened:
            begin = text_from(opened, self._read.get(replica, 0))
            opened.seek(begin)
            block = opened.read()
        if self._of_round:
            attempt, later = self._run.output_begin(replica)
            block = block[: max(0, later - begin)] if attempt > self._attempt else block
        # Leave an incomplete line for the next read.
        complete_lines = block[: block.rfind(b"\n") + 1]
        self._read[replica] = begin + len(complete_lines)
        texts = complete_lines.decode(errors="replace").split("\n")[:-1]
        lines = [file_line(text, replica) for text in texts]
        if replica not in self._logs:
            self._logs[replica] = self.rounds.log(replica, lines)
        log = self._logs[replica]
        yield from (line for line in lines if log.has(line) and self._selection.wants(line.source))
