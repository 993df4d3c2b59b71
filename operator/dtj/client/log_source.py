"""Who printed what: which pods and files have the lines that are asked for, and the lines apart from their marks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from dtj.api.errors import Unusable
from dtj.api.job import Job
from dtj.api.spec import Strategy
from dtj.api.validation import ROLES_OF, faults
from dtj.client.views import LogLine
from dtj.plan.horovod import slots_per_worker
from dtj.plan.job import plan_job
from dtj.status.pods import PodView

_RANK_PREFIX = re.compile(r"\[rank (\d+)\] ")
_RANK_FILE = re.compile(r"rank-(\d+)")


@dataclass(frozen=True)
class Selection:
    """The lines that are asked for. Raises Unusable for what the job's strategy does not have."""

    job: Job
    role: str | None = None
    index: int | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        strategy = self.job.spec.strategy
        if self.role is not None and self.role not in ROLES_OF[strategy]:
            raise Unusable(
                f"strategy {strategy} has no {self.role}: its roles are {', '.join(ROLES_OF[strategy])}"
            )
        if self.rank is not None and not self._ranked:
            raise Unusable(f"a {strategy} job has no ranks", "choose by role and index")
        if self.rank is not None and (self.role is not None or self.index is not None):
            raise Unusable("give a rank, or role and index, not both")
        if self.index is not None and self.role is None:
            raise Unusable("an index needs a role", "e.g. role worker, index 1")

    def has_pod(self, role: str, index: int) -> bool:
        """Whether the log of this pod has such lines. The launcher's has those of all ranks."""
        if self._ranked and role == "launcher":
            return True
        if self._ranked and self.role is None:
            return False
        return (self.role in (None, role)) and (self.index in (None, index))

    def has_all(self, pods: Iterable[PodView]) -> bool:
        """Whether no pod with such lines is missing."""
        if faults(self.job):
            # There is no plan of it, and never was a pod.
            return False
        there = {(pod.role, pod.index) for pod in pods}
        wanted = ((replica.role, replica.index) for replica in plan_job(self.job).replicas)
        return all(pod in there for pod in wanted if self.has_pod(*pod))

    @property
    def of_whole_pods(self) -> bool:
        """Whether every line of its pods is asked for."""
        return not self._ranked or (self.role is None and self.rank is None)

    def wants(self, source: str) -> bool:
        """Whether a line of this source is asked for."""
        ranked = re.fullmatch(r"rank (\d+)", source)
        if self.rank is not None:
            return source == f"rank {self.rank}"
        if self.role is None:
            return True
        if ranked:
            worker = int(ranked[1]) // slots_per_worker(self.job)
            return self.role == "worker" and self.index in (None, worker)
        role, _, index = source.rpartition("-")
        return role == self.role and (self.index is None or index == str(self.index))

    def files(self, names: Sequence[str]) -> list[str]:
        """Which log files of an attempt have the lines: the launcher's alone where it has all that is wanted."""
        if not self._ranked:
            return [name for name in names if self.wants(name)]
        if self.role in (None, "launcher") and self.rank is None and "launcher-0" in names:
            return ["launcher-0"]
        return [name for name in names if self.wants(source_of(name))]

    @property
    def _ranked(self) -> bool:
        return self.job.spec.strategy is Strategy.HOROVOD


def source_of(file: str) -> str:
    """The source of a log file's lines, by its name without suffix: rank-0, launcher-0, worker-1."""
    ranked = _RANK_FILE.fullmatch(file)
    return f"rank {ranked[1]}" if ranked else file


def file_line(text: str, source: str) -> LogLine:
    """A line of a log file. In the launcher's, ranks' lines say whose they are."""
    ranked = _RANK_PREFIX.match(text)
    if ranked:
        return LogLine(f"rank {ranked[1]}", text[ranked.end() :])
    return LogLine(source, text)


def pod_line(text: str, source: str) -> LogLine:
    """A line of a pod's log, which begins with the kubelet's time."""
    stamp, _, rest = text.partition(" ")
    line = file_line(rest, source)
    try:
        # Nanoseconds are more than datetime has.
        time = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", stamp))
    except ValueError:
        return file_line(text, source)
    return LogLine(line.source, line.text, time)
