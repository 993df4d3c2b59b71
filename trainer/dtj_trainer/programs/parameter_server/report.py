"""What the chief tells while it trains: progress, TensorBoard, metrics.jsonl, the log and the bottleneck."""

from __future__ import annotations

import logging
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract, progress
from dtj_trainer.programs.metrics import MetricsFile
from dtj_trainer.programs.parameter_server.bottleneck import BottleneckWatch, StepTimes, waiting_share
from dtj_trainer.tensorboard import ScalarWriter

if TYPE_CHECKING:
    from dtj_trainer.programs.parameter_server.cluster import Cluster
    from dtj_trainer.programs.parameter_server.options import Options
    from dtj_trainer.programs.parameter_server.state import State
    from dtj_trainer.programs.parameter_server.updates import StepResult

log = logging.getLogger(__name__)

TELL_SECONDS = 1.0
"""Between two reports of progress, and two points in TensorBoard."""


@dataclass
class _Window:
    """What was done since a moment."""

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
        """Global steps and examples a second."""
        seconds = max(now - self.began, 1e-9)
        return self.steps / seconds, self.examples / seconds


class Report:
    """Told of each finished step; says something now and then. `state`: where the training begins or goes on."""

    def __init__(self, options: Options, cluster: Cluster, state: State) -> None:
        self._options = options
        self._cluster = cluster
        self._metrics = MetricsFile(cluster.workers)
        self._watch = BottleneckWatch(cluster.ps)
        folder = Path(contract.root()) / contract.TENSORBOARD / "train"
        self._writer = ScalarWriter(folder, rotate_seconds=options.tensorboard_seconds, first_step=state.step)
        self._told = self._logged = _Window(time.monotonic())
        self._first = True
        self._examples = state.trained

    def begin(self, state: State, total_steps: int) -> None:
        """Training begins now; rates count from here."""
        self._told, self._logged = (_Window(time.monotonic()) for _ in range(2))
        self._metrics.add(
            "start",
            {
                "step": state.step,
                "examples": state.trained,
                "totalSteps": total_steps,
                "data": self._options.data or os.environ.get(contract.ENV_DATA_URI),
                "trainingExamples": state.training_examples,
                **self._of_what(),
            },
        )

    def add(self, result: StepResult, state: State, total_steps: int) -> None:
        """Take a finished step into account, after which the training is where `state` says."""
        now = time.monotonic()
        self._examples += result.examples
        self._told.add(result)
        self._logged.add(result)
        for times in result.times:
            self._watch.add(times, now)
        if self._first or now - self._told.began >= TELL_SECONDS:
            self._tell(state, total_steps, now)
        if self._first or now - self._logged.began >= self._options.log_seconds:
            self._log(state, total_steps, now)
        self._first = False

    def end_of_epoch(self, state: State, total_steps: int) -> None:
        """Tell what was not told yet."""
        now = time.monotonic()
        if self._told.steps:
            self._tell(state, total_steps, now)
        if self._logged.steps:
            self._log(state, total_steps, now)

    def end(self, state: State) -> None:
        """Tell that the training is over."""
        seconds = max(state.seconds, 1e-9)
        self._metrics.add(
            "end",
            {
                "step": state.step,
                "steps": state.step,
                "epochs": state.epoch,
                "examples": state.trained,
                "seconds": round(state.seconds, 3),
                "globalStepsPerSecond": round(state.step / seconds, 3),
                "examplesPerSecond": round(state.trained / seconds, 1),
                **self._of_what(),
            },
        )
        progress.bottleneck(None)
        progress.report(step=state.step, total_steps=state.step, final=True)

    def close(self) -> None:
        """Finish the event file and write what progress held back."""
        self._writer.close()
        progress.flush()

    def _of_what(self) -> dict[str, object]:
        """What is trained, by how many."""
        return {
            "updates": self._options.updates,
            "model": self._options.model,
            "batchSize": self._options.batch_size,
            "workers": self._cluster.workers,
            "ps": self._cluster.ps,
        }

    def _tell(self, state: State, total_steps: int, now: float) -> None:
        steps, examples = self._told.rates(now)
        progress.report(
            step=state.step,
            total_steps=total_steps,
            epoch=state.epoch + 1,
            loss=self._told.mean_loss,
            examples_per_second=examples,
        )
        self._writer.add(
            state.step,
            {
                "train/loss": self._told.mean_loss,
                "train/accuracy": self._told.accuracy,
                "train/global_steps_per_second": steps,
                "train/examples_per_second": examples,
                "train/ps_wait_share": waiting_share(self._told.times),
            },
        )
        found = self._watch.find(now)
        progress.bottleneck(found)
        self._told = _Window(now)

    def _log(self, state: State, total_steps: int, now: float) -> None:
        window = self._logged
        steps, examples = window.rates(now)
        share = waiting_share(window.times)
        self._metrics.add(
            "train",
            {
                "step": state.step,
                "epoch": round(state.epoch + state.examples / state.training_examples, 4),
                "examples": self._examples,
                "loss": window.mean_loss,
                "accuracy": window.accuracy,
                "globalStepsPerSecond": round(steps, 3),
                "examplesPerSecond": round(examples, 1),
                "seconds": round(state.seconds, 3),
                "updates": self._options.updates,
                "workers": of_workers(window.times),
                "psWaitShare": round(share, 4),
            },
        )
        log.info(
            "step %d/%d epoch %d: loss %.4f, accuracy %.4f, %.1f steps/s, %.0f examples/s, %.0f %% waiting for ps",
            state.step,
            total_steps,
            state.epoch + 1,
            window.mean_loss,
            window.accuracy,
            steps,
            examples,
            100 * share,
        )
        self._logged = _Window(now)


def of_workers(times: list[StepTimes]) -> dict[str, dict[str, float]]:
    """By worker: how many batches, and the seconds of a step, mean, 90th percentile and mean of each part."""
    found = {}
    for worker in sorted({batch.worker for batch in times}):
        mine = [batch for batch in times if batch.worker == worker]
        totals = [batch.total for batch in mine]
        found[str(worker)] = {
            "batches": len(mine),
            "mean": round(statistics.fmean(totals), 6),
            "p90": round(statistics.quantiles(totals, n=10, method="inclusive")[-1], 6)
            if len(totals) > 1
            else round(totals[0], 6),
            "read": round(statistics.fmean(batch.read for batch in mine), 6),
            "compute": round(statistics.fmean(batch.compute for batch in mine), 6),
            "push": round(statistics.fmean(batch.push for batch in mine), 6),
        }
    return found
