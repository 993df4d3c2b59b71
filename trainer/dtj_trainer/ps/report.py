"""The chief's reports while it trains: progress, TensorBoard, metrics.jsonl, the log and the bottleneck."""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from dtj_trainer import progress
from dtj_trainer.train.protocols import TOP
from dtj_trainer.train.report import TrainingReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer import contract
    from dtj_trainer.ps.cluster import Cluster
    from dtj_trainer.ps.options import ServerOptions
    from dtj_trainer.ps.state import TrainingState
    from dtj_trainer.ps.updates import StepResult
    from dtj_trainer.train.meeting import Sums
    from dtj_trainer.train.protocols import Position


# BottleneckWatch finds the bottleneck of a parameter server training, the servers or one worker, from the times of
# batches. Callers pass the present time: BottleneckWatch reads no clock.

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


class BatchTimes(NamedTuple):
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
        self._batches: dict[int, deque[BatchTimes]] = {}
        self._seen: dict[int, float] = {}
        self._found: _Finding | None = None
        self._other: _Finding | None = None
        self._since: float | None = None  # since when `_other` is the candidate to replace `_found`

    def add(self, times: BatchTimes, now: float) -> None:
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

    def _keeps(self, present: dict[int, list[BatchTimes]]) -> _Finding | None:
        """Update the known bottleneck while it stays above the lower threshold (hysteresis)."""
        if self._found is None:
            return None
        if self._found.kind == "ParameterServers":
            return self._ps_finding(present, SHARE_OVER)
        finding = self._worker_finding(present, SLOWER_OVER)
        return finding if _who(finding) == _who(self._found) else None

    def _present(self, now: float) -> dict[int, list[BatchTimes]]:
        """Return the batches of workers that still deliver some, and therefore are not lost."""
        present = {}
        for worker, batches in self._batches.items():
            usual = sum(times.total for times in batches) / len(batches)
            silent = now - self._seen[worker]
            if len(batches) >= BATCHES_LEAST and silent <= max(_GONE_SECONDS, _GONE_STEPS * usual):
                present[worker] = list(batches)
        return present

    def _ps_finding(self, present: dict[int, list[BatchTimes]], threshold: float) -> _Finding | None:
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

    def _worker_finding(self, present: dict[int, list[BatchTimes]], threshold: float) -> _Finding | None:
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


def waiting_share(batches: list[BatchTimes]) -> float:
    """Return the fraction of these batches' time that was spent waiting for the parameter servers."""
    whole = sum(times.total for times in batches)
    return sum(times.waiting for times in batches) / whole if whole > 0 else 0.0


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def _who(found: _Finding | None) -> tuple[str, int | None] | None:
    return (found.kind, found.worker) if found else None


log = logging.getLogger(__name__)

REPORT_SECONDS = 1.0
"""Seconds between two reports of progress, and two points in TensorBoard."""


@dataclass
class _Window:
    """Sums over the steps since a point in time."""

    began: float
    steps: int = 0
    examples: int = 0
    loss: float = 0.0
    right: float = 0.0
    times: list[BatchTimes] = field(default_factory=list)

    def add(self, result: StepResult) -> None:
        self.steps += 1
        self.examples += result.examples
        self.loss += result.loss
        self.right += result.right
        self.times += result.times

    @property
    def mean_loss(self) -> float:
        return self.loss / max(self.examples, 1)

    @property
    def accuracy(self) -> float:
        return self.right / max(self.examples, 1)

    def rates(self, now: float) -> tuple[float, float]:
        """Return global steps and examples a second."""
        seconds = max(now - self.began, 1e-9)
        return self.steps / seconds, self.examples / seconds


class ServerTrainingReport(TrainingReport):
    """See TrainingReport. `add` takes each finished step. ChiefModel updates `state`."""

    def __init__(self, options: ServerOptions, cluster: Cluster, state: TrainingState) -> None:
        of_set = state.training_examples, state.step
        super().__init__(options, cluster.workers, *of_set, "train", top5=state.classes > TOP)
        self._of_job = {"updates": options.updates, "workers": cluster.workers, "ps": cluster.ps}
        self._state = state
        self._watch = BottleneckWatch(cluster.ps)
        self._reported = self._logged = _Window(time.monotonic())
        self._first = True
        self._examples = state.trained

    def begin(self, at: Position, total_steps: int) -> None:
        """See TrainingReport. Rates are measured from this moment."""
        self._reported, self._logged = (_Window(time.monotonic()) for _ in range(2))
        super().begin(at, total_steps)

    def add(self, result: StepResult) -> None:
        """Count a finished training step for the next report."""
        now = time.monotonic()
        self._examples += result.examples + result.skipped
        self._skipped += result.skipped
        self._reported.add(result)
        self._logged.add(result)
        for times in result.times:
            self._watch.add(times, now)

    def trained(self, at: Position, total_steps: int, now: Sums, rate: float, *, last: bool) -> None:
        """See TrainingReport. Reports at intervals, over the steps given to `add`."""
        clock = time.monotonic()
        at = replace(at, step=self._state.step)  # `at` also counts steps that have not ended.
        if self._first or last or clock - self._reported.began >= REPORT_SECONDS:
            self._report(at, total_steps, clock, rate)
        if self._first or last or clock - self._logged.began >= self._options.log_seconds:
            self._log(at, total_steps, clock, rate)
        self._first = False
        self._add_to_epoch(at, now, rate)

    def end(self, at: Position, accuracy: float | None, facts: Mapping[str, object]) -> None:
        """See TrainingReport."""
        seconds = max(self._state.seconds, 1e-9)
        rates = {
            "examples": self._examples,
            "globalStepsPerSecond": round(at.step / seconds, 3),
            "examplesPerSecond": round(self._examples / seconds, 1),
            "appliedTwice": self._state.applied_twice,
        }
        progress.bottleneck(None)
        super().end(at, accuracy, {**facts, **rates, **self._of_what()})

    def close(self) -> None:
        """Finish the event file and write pending progress."""
        super().close()
        progress.flush()

    def _of_what(self) -> dict[str, object]:
        return super()._of_what() | self._of_job

    def _trained(self, at: Position) -> int:
        del at  # `at` also counts examples of steps that have not ended.
        return self._examples

    def _seconds(self) -> float:
        return round(self._state.seconds, 3)

    def _means(self, of: Sums) -> tuple[float, float, float]:
        # Do not divide the seconds by the number of workers: only the chief counts seconds.
        return of.loss / of.examples, of.right / of.examples, of.examples / max(of.seconds, 1e-9)

    def _report(self, at: Position, total_steps: int, now: float, rate: float) -> None:
        window, epoch = self._reported, at.epoch + 1
        loss, (steps, examples) = window.mean_loss, window.rates(now)
        progress.report(
            step=at.step,
            total_steps=total_steps,
            epoch=epoch,
            loss=loss,
            examples_per_second=examples,
            applied_twice=self._state.applied_twice or None,
        )
        self._writer.add(
            at.step,
            {
                "train/loss": loss,
                "train/accuracy": window.accuracy,
                "train/learning_rate": rate,
                "train/global_steps_per_second": steps,
                "train/examples_per_second": examples,
                "train/ps_wait_share": waiting_share(window.times),
                "train/batches_applied_twice": self._state.applied_twice,
            },
        )
        progress.bottleneck(self._watch.find(now))
        self._reported = _Window(now)

    def _log(self, at: Position, total_steps: int, now: float, rate: float) -> None:
        window, share = self._logged, waiting_share(self._logged.times)
        loss, accuracy, (steps, examples) = window.mean_loss, window.accuracy, window.rates(now)
        more = {
            "learningRate": rate,
            "globalStepsPerSecond": round(steps, 3),
            "updates": self._of_job["updates"],
            "workers": of_workers(window.times),
            "psWaitShare": round(share, 4),
            "appliedTwice": self._state.applied_twice,
            **self._take_skipped(),
        }
        self._add("train", at, loss, accuracy, examples, more)
        log.info(
            "step %d/%d epoch %d: loss %.4f, accuracy %.4f, %.1f steps/s, %.0f examples/s, %.0f %% waiting for ps",
            *(at.step, total_steps, at.epoch + 1, loss, accuracy, steps, examples, 100 * share),
        )
        self._logged = _Window(now)


def of_workers(times: list[BatchTimes]) -> dict[str, dict[str, float]]:
    """Return, by worker: the number of batches, and mean, 90th percentile and mean parts of a step in seconds."""
    found = {}
    for worker in sorted({batch.worker for batch in times}):
        own = [batch for batch in times if batch.worker == worker]
        totals = [batch.total for batch in own]
        found[str(worker)] = {
            "batches": len(own),
            "mean": round(statistics.fmean(totals), 6),
            "p90": round(statistics.quantiles(totals, n=10, method="inclusive")[-1], 6)
            if len(totals) > 1
            else round(totals[0], 6),
            "read": round(statistics.fmean(batch.read for batch in own), 6),
            "compute": round(statistics.fmean(batch.compute for batch in own), 6),
            "push": round(statistics.fmean(batch.push for batch in own), 6),
        }
    return found
