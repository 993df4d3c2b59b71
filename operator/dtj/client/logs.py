"""The pods and log files that contain the lines of a query, the source of each line, and the logs of a bucket.

This module does not use the API server: past jobs and runs of this machine read their logs here, too. `pod_logs`
reads the logs of pods.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from dtj.api.errors import NotFound, Unusable
from dtj.api.job import Job
from dtj.api.shape import Replica
from dtj.api.validation import faults
from dtj.client.artifacts import Artifacts, joined
from dtj.client.log_rounds import RoundChoice
from dtj.client.objects import ALL_LINES, LogLine, LogQuery, Pod
from dtj.plan.job import plan_job
from dtj_trainer import contract

_RANK_PREFIX = re.compile(r"\[rank (\d+)\] ")
_RANK_FILE = re.compile(r"rank-(\d+)")


@dataclass(frozen=True)
class LogSelection:
    """The lines of a job that a query selects. Raises Unusable if the query names a role that the strategy lacks."""

    job: Job
    query: LogQuery = ALL_LINES

    def __post_init__(self) -> None:
        rules = self.job.rules
        if self.query.role is not None and self.query.role not in rules.roles:
            raise Unusable(
                f"strategy {rules.name} has no role {self.query.role}: its roles are {', '.join(rules.roles)}"
            )
        if self.query.rank is not None and not rules.ranked:
            raise Unusable(f"a {rules.name} job has no ranks", "give a role and an index instead of a rank")

    def has_pod(self, role: str, index: int) -> bool:
        """Return whether the log of a pod has selected lines. The log of a collector has the lines of all ranks."""
        if role in self._collectors:
            return True
        if self._collectors and self.query.role is None:
            return False
        if self.query.rank is not None:
            return self._runs(self.query.rank, role, index)
        return (self.query.role in (None, role)) and (self.query.index in (None, index))

    def has_all(self, pods: Iterable[Pod]) -> bool:
        """Return whether `pods` includes every pod with selected lines."""
        if faults(self.job):
            # An invalid job has no plan, and the operator never created a pod of the job.
            return False
        return not self._others({(pod.role, pod.index) for pod in pods})

    def of_others(self, pods: Set[tuple[str, int]]) -> list[LogSelection]:
        """Return selections of the lines of all other pods in their latest attempts. pods: role and index of each.

        A collector's log has the lines of all pods: it is selected only if none of `pods` has selected lines.
        """
        if self.query.round is not None or faults(self.job):
            return []
        chosen, others = replace(self.query, follow=False), self._others(pods)
        if self._collectors or self.query.rank is not None:
            others = [] if any(self.has_pod(*pod) for pod in pods) else others[:1]
            return [replace(self, query=replace(chosen, attempt=each.attempt)) for each in others]
        return [
            replace(self, query=replace(chosen, role=each.role, index=each.index, attempt=each.attempt))
            for each in others
        ]

    def _others(self, pods: Set[tuple[str, int]]) -> list[Replica]:
        replicas = (each for each in plan_job(self.job).shape.replicas if self.has_pod(each.role, each.index))
        return [each for each in replicas if (each.role, each.index) not in pods]

    @property
    def of_whole_pods(self) -> bool:
        """Whether the query selects every line of each pod."""
        if self.query.round is not None:
            return False
        if self.query.rank is not None:
            return not self._collectors and not self._share_pods
        return not self._collectors or self.query.role is None

    def wants(self, source: str) -> bool:
        """Return whether the query selects the lines of a source."""
        ranked = re.fullmatch(r"rank (\d+)", source)
        role, _, index = source.rpartition("-")
        if self.query.rank is not None:
            # Without a collector, the log of a rank's pod is the log of the rank.
            own = not self._collectors and index.isdecimal() and self._runs(self.query.rank, role, int(index))
            return source == f"rank {self.query.rank}" or own
        if self.query.role is None:
            return True
        if ranked and self.query.index is not None:
            return self._runs(int(ranked[1]), self.query.role, self.query.index)
        if ranked:
            return self.job.rules.roles[self.query.role].ranks is not None
        return role == self.query.role and (self.query.index is None or index == str(self.query.index))

    def files(self, names: Sequence[str]) -> list[str]:
        """Return the log files with selected lines.

        If the file of a collector has all of the lines, return only that file.
        """
        for collector in self._collectors:
            if self.query.role in (None, collector) and self.query.rank is None and f"{collector}-0" in names:
                return [f"{collector}-0"]
        return [name for name in names if self.wants(source_of(name))]

    @cached_property
    def _collectors(self) -> tuple[str, ...]:
        """The roles whose log contains the lines of all ranks."""
        return self.job.rules.named["collects_ranks"]

    @cached_property
    def _share_pods(self) -> bool:
        """Whether several ranks run in each pod."""
        rules = self.job.rules
        return any(len(rules.ranks_of(self.job.spec, role, 0)) > 1 for role in rules.roles)

    def _runs(self, rank: int, role: str, index: int) -> bool:
        """Return whether a rank runs in a pod."""
        return rank in self.job.rules.ranks_of(self.job.spec, role, index)


def source_of(file: str) -> str:
    """Return the source of the lines of a log file. file: the name without suffix, e.g. rank-0 or worker-1."""
    ranked = _RANK_FILE.fullmatch(file)
    return f"rank {ranked[1]}" if ranked else file


def file_line(text: str, source: str) -> LogLine:
    """Parse a line of a log file. In the log of the launcher, the line of a rank begins with `[rank N]`."""
    ranked = _RANK_PREFIX.match(text)
    if ranked:
        return LogLine(f"rank {ranked[1]}", text[ranked.end() :])
    return LogLine(source, text)


def pod_line(text: str, source: str) -> LogLine:
    """Parse a line of a pod's log, which begins with the timestamp of the kubelet."""
    stamp, _, rest = text.partition(" ")
    line = file_line(rest, source)
    try:
        # The kubelet writes nanoseconds. datetime supports only microseconds.
        time = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", stamp))
    except ValueError:
        return file_line(text, source)
    return LogLine(line.source, line.text, time)


# The pattern allows a segment number. If a lifecycle rule of the bucket removed the first segment, `joined` treats
# each other segment as a separate file.
_FILE = re.compile(rf"{contract.LOGS}/attempt-(\d+)/(.+)\.log(?:\.\d{{5,}})?")


def stored_logs(artifacts: Artifacts) -> dict[str, int]:
    """Return the sizes of the objects of all logs, by key."""
    return {stored.key: stored.size for stored in artifacts.ls(contract.LOGS)}


def bucket_log(
    artifacts: Artifacts, selection: LogSelection, sizes: Mapping[str, int] | None = None
) -> Iterator[LogLine]:
    """Yield the lines of an attempt, file by file. Without an attempt, yield the newest log of each replica or rank.

    Of a round, yield the lines of the newest attempt alone. The query's `tail` limits how many segments of a log are
    fetched, except for a round. sizes: what `stored_logs` returns; None: list the objects here. Raises NotFound if
    the bucket has no such log, or the logs have no such round.
    """
    attempt, tail = selection.query.attempt, selection.query.tail
    sizes = stored_logs(artifacts) if sizes is None else sizes
    logs: dict[str, dict[int, list[str]]] = {}
    """The keys of a log's segments, by name and attempt."""
    for file, keys in joined(sizes).items():
        match = _FILE.fullmatch(file)
        if match and attempt in (None, int(match[1])):
            logs.setdefault(match[2], {}).setdefault(int(match[1]), []).extend(keys)
    names = selection.files(sorted(logs))
    if not names:
        of_attempt = "" if attempt is None else f" of attempt {attempt}"
        chosen = selection.query.role is not None or selection.query.rank is not None
        of_chosen = " of the chosen ranks or replicas" if chosen else ""
        raise NotFound(f"{artifacts.uri} has no logs{of_attempt}{of_chosen}")
    rounds = RoundChoice(selection.job.name, selection.query)
    newest = max(max(logs[name]) for name in names)
    for name in names:
        keys, source = logs[name][max(logs[name])], source_of(name)
        if selection.query.round is not None:
            if newest in logs[name]:
                yield from _of_round(artifacts, keys, source, selection, rounds)
        elif tail is None:
            yield from _wanted(_lines(artifacts.pieces(keys)), source, selection)
        else:
            yield from _last(artifacts, [(key, sizes[key]) for key in keys], source, selection)
    rounds.check()


def _of_round(
    artifacts: Artifacts, keys: Sequence[str], source: str, selection: LogSelection, rounds: RoundChoice
) -> Iterable[LogLine]:
    """Return the wanted lines of the query's round in one log."""

    def read() -> Iterator[LogLine]:
        return _parsed(_lines(artifacts.pieces(keys)), source)

    # The name of the first segment has no number. If the first segment is missing, the beginning of the log is lost:
    # read the whole log once before, to find its first round.
    log = rounds.log(source, () if keys[0].endswith(".log") else read())
    lines = (line for line in read() if log.has(line) and selection.wants(line.source))
    return lines if selection.query.tail is None else deque(lines, selection.query.tail)


def _last(
    artifacts: Artifacts,
    parts: Sequence[tuple[str, int]],
    source: str,
    selection: LogSelection,
) -> list[LogLine]:
    """Return the last lines of a log. Read its segments (key, size) backwards, only as far as needed."""
    count, most = selection.query.tail or 0, selection.query.tail_bytes
    lines: list[LogLine] = []
    # The incomplete first line of the bytes that are read so far. The line begins in the bytes before.
    begin = b""
    read = 0
    for piece in artifacts.backwards(parts):
        read += len(piece)
        line, end, rest = (piece + begin).partition(b"\n")
        lines[:0] = _wanted(_lines([rest]), source, selection)
        begin = line + end
        if len(lines) >= count:
            break
        if most is not None and read >= most:
            # A single line may be longer than the limit. Return the end of the line.
            lines = lines or [*_wanted(_lines([begin]), source, selection)]
            break
    else:
        lines[:0] = _wanted(_lines([begin]), source, selection)
    return lines[max(0, len(lines) - count) :]


def _wanted(lines: Iterator[bytes], source: str, selection: LogSelection) -> Iterator[LogLine]:
    return (line for line in _parsed(lines, source) if selection.wants(line.source))


def _parsed(lines: Iterator[bytes], source: str) -> Iterator[LogLine]:
    return (file_line(text.decode(errors="replace"), source) for text in lines)


def _lines(pieces: Iterator[bytes] | Sequence[bytes]) -> Iterator[bytes]:
    # Split at \n only: splitlines() would also split at form feeds and other separators inside a line.
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest
