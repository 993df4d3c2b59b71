"""Detects the bottleneck of a parameter server training: the servers, or one worker. Pure: times in, finding out."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from dtj_trainer import contract

SHARE = 0.5
"""The servers are the bottleneck when workers wait for them for at least this share of a step. Measured shares: 0.22
to 0.42 for two workers and a server on two busy processors; 0.53 to 0.69 with a tenth of a processor for the
server."""
SHARE_OVER = 0.42
"""The servers stop being the bottleneck below this share."""
SLOWER = 2.0
"""A worker that computes this many times slower than the others is the bottleneck."""
SLOWER_OVER = 1.5
SUSTAINED_SECONDS = 10.0
"""Seconds for which a change must last before it is reported."""
BATCHES = 200
"""The number of each worker's newest batches that count."""
BATCHES_LEAST = 5
"""A worker with fewer batches is ignored."""
_GONE_SECONDS = 30.0
_GONE_STEPS = 5


class StepTimes(NamedTuple):
    """One batch: its worker, and the seconds to read the variables, to compute, and to update the variables."""

    worker: int
    read: float
    compute: float
    push: float

    @property
    def total(self) -> float:
        """The duration of the whole step, in seconds."""
        return self.read + self.compute + self.push

    @property
    def waiting(self) -> float:
        """The seconds spent waiting for the parameter servers."""
        return self.read + self.push


class _Finding(NamedTuple):
    """A bottleneck; `worker` is set for a slow worker."""

    kind: Literal["ParameterServers", "Worker"]
    worker: int | None
    message: str


class BottleneckWatch:
    """Evaluates the newest batches of each worker. Times are in seconds; `now` is of any monotonic clock."""

    def __init__(self, ps: int) -> None:
        self._ps = ps
        self._batches: dict[int, deque[StepTimes]] = {}
        self._seen: dict[int, float] = {}
        self._found: _Finding | None = None
        self._other: _Finding | None = None
        self._since: float | None = None  # when `_other` replaced `_found` as the candidate

    def add(self, times: StepTimes, now: float) -> None:
        """Add a finished batch."""
        self._batches.setdefault(times.worker, deque(maxlen=BATCHES)).append(times)
        self._seen[times.worker] = now

    def find(self, now: float) -> contract.Bottleneck | None:
        """Return the bottleneck with current figures.

        A change of the bottleneck, also to none, is reported only after it lasted SUSTAINED_SECONDS.
        """
        present = self._present(now)
        candidate = (
            self._keeps(present) or self._ps_finding(present, SHARE) or self._worker_finding(present, SLOWER)
        )
        if _who(candidate) == _who(self._found):
            self._found, self._since = candidate, None
        elif self._since is None or _who(candidate) != _who(self._other):
            self._other, self._since = candidate, now
        elif now - self._since >= SUSTAINED_SECONDS:
            self._found, self._since = candidate, None
        return {"kind": self._found.kind, "message": self._found.message} if self._found else None

    def _keeps(self, present: dict[int, list[StepTimes]]) -> _Finding | None:
        """Update the known bottleneck while it stays above the lower threshold (hysteresis)."""
        if self._found is None:
            return None
        if self._found.kind == "ParameterServers":
            return self._ps_finding(present, SHARE_OVER)
        finding = self._worker_finding(present, SLOWER_OVER)
        return finding if _who(finding) == _who(self._found) else None

    def _present(self, now: float) -> dict[int, list[StepTimes]]:
        """Return the batches of workers that still deliver some, and therefore are not lost."""
        present = {}
        for worker, batches in self._batches.items():
            usual = sum(times.total for times in batches) / len(batches)
            silent = now - self._seen[worker]
            if len(batches) >= BATCHES_LEAST and silent <= max(_GONE_SECONDS, _GONE_STEPS * usual):
                present[worker] = list(batches)
        return present

    def _ps_finding(self, present: dict[int, list[StepTimes]], threshold: float) -> _Finding | None:
        batches = [times for of_worker in present.values() for times in of_worker]
        if not batches or waiting_share(batches) < threshold:
            return None
        waited = sum(times.waiting for times in batches) / len(batches)
        whole = sum(times.total for times in batches) / len(batches)
        servers = "1 parameter server" if self._ps == 1 else f"{self._ps} parameter servers"
        return _Finding(
            "ParameterServers",
            None,
            f"workers wait {100 * waited / whole:.0f} % of each step for {servers} ({_milliseconds(waited)} of "
            f"{_milliseconds(whole)}): give ps more CPU or more replicas (replicaSpecs.ps)",
        )

    def _worker_finding(self, present: dict[int, list[StepTimes]], threshold: float) -> _Finding | None:
        if len(present) < 2:
            return None
        computing = {
            worker: median(times.compute for times in batches) for worker, batches in present.items()
        }
        slowest = max(computing, key=lambda worker: computing[worker])
        others = median(seconds for worker, seconds in computing.items() if worker != slowest)
        if others <= 0 or computing[slowest] < threshold * others:
            return None
        return _Finding(
            "Worker",
            slowest,
            f"worker {slowest} computes {_milliseconds(computing[slowest])} on each batch, the others "
            f"{_milliseconds(others)}: its node is slower or busy; give it as much CPU or GPU as the others have "
            "(replicaSpecs.worker), or move it to another node",
        )


def waiting_share(batches: list[StepTimes]) -> float:
    """Return the fraction of these batches' time that was spent waiting for the parameter servers."""
    whole = sum(times.total for times in batches)
    return sum(times.waiting for times in batches) / whole if whole > 0 else 0.0


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def _who(found: _Finding | None) -> tuple[str, int | None] | None:
    return (found.kind, found.worker) if found else None
