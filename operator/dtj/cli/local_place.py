"""A run of this machine, seen as a job of a cluster is."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dtj.api.errors import NotFound
from dtj.client import Artifacts, DistributedTrainingJob, JobEvent, LogLine, PodView
from dtj.client.views import read_event
from dtj.local.runs import Run
from dtj_trainer import contract
from dtj_trainer.artifacts.s3 import parse_s3_uri

_LOOK_SECONDS = 0.3
_RANK = re.compile(r"\[rank (\d+)\] ")


class LocalPlace:
    """Implements `dtj.cli.places.Place` for a run."""

    def __init__(self, run: Run, home: Path) -> None:
        """home: dtj's, below which the embedded store is."""
        self._run = run
        self._home = home

    def job(self) -> DistributedTrainingJob:
        """As Place."""
        return DistributedTrainingJob.from_cluster(self._run.manifest)

    def note(self) -> str | None:
        """As Place."""
        if self._run.pid is not None or self.job().status.finished:
            return None
        return "nobody carries this run out now: `dtj run FILE --resume` goes on from its checkpoint"

    def pods(self) -> list[PodView]:
        """As Place."""
        return []

    def events(self) -> list[JobEvent]:
        """As Place."""
        return [read_event(event) for event in self._run.events]

    @contextmanager
    def artifacts(self) -> Iterator[Artifacts]:
        """As Place; the embedded store is started for it unless it runs."""
        uri = self.job().artifacts_uri
        if uri is None:
            raise NotFound(f"{self._run.name} keeps no artifacts", "give it spec.artifacts.uri")
        if not self._run.embedded_store:
            endpoint = self.job().spec.artifacts
            given = {"AWS_ENDPOINT_URL_S3": endpoint.endpoint} if endpoint and endpoint.endpoint else {}
            yield Artifacts(uri, {**given, **os.environ})
            return
        from dtj.local.object_store import open_store

        with open_store(self._home, [parse_s3_uri(uri).bucket]) as store:
            yield Artifacts(uri, store.environment)

    def logs(
        self,
        *,
        role: str | None = None,
        index: int | None = None,
        rank: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
    ) -> Iterator[LogLine]:
        """As Place: what the replicas printed over all attempts; one attempt's is in the bucket."""
        if attempt is not None:
            yield from self._stored(attempt, role, index, rank, tail)
            return
        files = _Outputs(self._run, role, index, rank)
        yield from files.last(tail)
        while follow:
            ended = self._run.pid is None
            yield from files.fresh()
            if ended:
                return
            time.sleep(_LOOK_SECONDS)

    def _stored(
        self, attempt: int, role: str | None, index: int | None, rank: int | None, tail: int | None
    ) -> Iterator[LogLine]:
        with self.artifacts() as artifacts:
            for item in artifacts.ls(f"{contract.LOGS}/attempt-{attempt}"):
                name = Path(item.key).stem
                source = name.replace("rank-", "rank ") if name.startswith("rank-") else name
                if _is_wanted(source, role, index, rank):
                    text = artifacts.read(item.key).decode(errors="replace")
                    yield from (LogLine(source, line) for line in deque(text.splitlines(), tail))


class _Outputs:
    """The output files of a run's replicas, read from where the last look ended."""

    def __init__(self, run: Run, role: str | None, index: int | None, rank: int | None) -> None:
        self._run = run
        self._wanted = role, index, rank
        self._read: dict[str, int] = {}
        """Bytes read, by replica."""

    def last(self, tail: int | None) -> Iterator[LogLine]:
        """What is there now: of each replica the last `tail` lines."""
        for replica in self._run.outputs:
            yield from deque(self._lines(replica), tail)

    def fresh(self) -> Iterator[LogLine]:
        """What came since."""
        for replica in self._run.outputs:
            yield from self._lines(replica)

    def _lines(self, replica: str) -> Iterator[LogLine]:
        with self._run.outputs[replica].open("rb") as file:
            file.seek(self._read.get(replica, 0))
            block = file.read()
        # A line that is being written waits for its end.
        whole = block[: block.rfind(b"\n") + 1]
        self._read[replica] = self._read.get(replica, 0) + len(whole)
        for text in whole.decode(errors="replace").splitlines():
            # The launcher prints what the ranks say, and names them.
            ranked = _RANK.match(text)
            source = f"rank {ranked[1]}" if ranked else replica
            if _is_wanted(source, *self._wanted, printed_by=replica):
                yield LogLine(source, text[ranked.end() :] if ranked else text)


def _is_wanted(
    source: str, role: str | None, index: int | None, rank: int | None, printed_by: str | None = None
) -> bool:
    if rank is not None:
        return source == f"rank {rank}"
    if role is None and index is None:
        return True
    of_role, _, of_index = (printed_by or source).rpartition("-")
    return (role is None or role == of_role) and (index is None or str(index) == of_index)
