"""The pods and log files that contain the lines of a query, and the source of each line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from dtj.api.errors import Unusable
from dtj.api.job import Job
from dtj.api.validation import faults
from dtj.client.views import ALL_LINES, LogLine, LogQuery, Pod
from dtj.plan.job import plan_job

_RANK_PREFIX = re.compile(r"\[rank (\d+)\] ")
_RANK_FILE = re.compile(r"rank-(\d+)")


@dataclass(frozen=True)
class Selection:
    """The lines of a job that a query selects. Raises Unusable if the query names a role that the strategy lacks."""

    job: Job
    query: LogQuery = ALL_LINES

    def __post_init__(self) -> None:
        rules = self.job.spec.rules
        if self.query.role is not None and self.query.role not in rules.roles:
            raise Unusable(
                f"strategy {rules.name} has no {self.query.role}: its roles are {', '.join(rules.roles)}"
            )
        if self.query.rank is not None and not rules.ranked:
            raise Unusable(f"a {rules.name} job has no ranks", "choose by role and index")

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
        present = {(pod.role, pod.index) for pod in pods}
        wanted = ((replica.role, replica.index) for replica in plan_job(self.job).replicas)
        return all(pod in present for pod in wanted if self.has_pod(*pod))

    @property
    def of_whole_pods(self) -> bool:
        """Whether the query selects every line of each pod."""
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
            return self.job.spec.rules.roles[self.query.role].ranks is not None
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
        return self.job.spec.rules.names(lambda role: role.collects_ranks)

    @cached_property
    def _share_pods(self) -> bool:
        """Whether several ranks run in each pod."""
        rules = self.job.spec.rules
        return any(len(rules.ranks_of(self.job.spec, role, 0)) > 1 for role in rules.roles)

    def _runs(self, rank: int, role: str, index: int) -> bool:
        """Return whether a rank runs in a pod."""
        return rank in self.job.spec.rules.ranks_of(self.job.spec, role, index)


def source_of(file: str) -> str:
    """Return the source of the lines of a log file. file: the name without suffix, e.g. rank-0 or worker-1."""
    ranked = _RANK_FILE.fullmatch(file)
    return f"rank {ranked[1]}" if ranked else file


def file_line(text: str, source: str) -> LogLine:
    """Parse a line of a log file. In the log of the launcher, the line of a rank begins with its number."""
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
