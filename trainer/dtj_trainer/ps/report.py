"""The chief's reports while it trains: progress, TensorBoard, metrics.jsonl, the log and the bottleneck."""

from __future__ import annotations

import logging
import statistics
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dtj_trainer import progress
from dtj_trainer.ps.bottleneck import BottleneckWatch, StepTimes, waiting_share
from dtj_trainer.train.protocols import TOP
from dtj_trainer.train.report import TrainingReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.ps.cluster import Cluster
    from dtj_trainer.ps.options import Options
    from dtj_trainer.ps.state import State
    from dtj_trainer.ps.updates import StepResult
    from dtj_trainer.train.meeting import Sums
    from dtj_trainer.train.protocols import Position

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
    times: list[StepTimes] = field(default_factory=list)

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


class Report(TrainingReport):
    """See TrainingReport. `add` takes each finished step. ChiefModel updates `state`."""

    def __init__(self, options: Options, cluster: Cluster, state: State) -> None:
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
        # The chief alone counts the seconds.
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


def of_workers(times: list[StepTimes]) -> dict[str, dict[str, float]]:
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
