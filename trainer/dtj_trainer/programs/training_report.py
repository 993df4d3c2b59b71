"""What a training tells: progress, TensorBoard's scalars, metrics.jsonl and its log. Rank 0 has one."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer import progress
from dtj_trainer.data.pictures import data_uri
from dtj_trainer.programs.metrics import MetricsFile
from dtj_trainer.tensorboard import ScalarWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.programs.options import Options

log = logging.getLogger("dtj_trainer.programs.picture_training")


@dataclass
class Position:
    """How far a run is: steps made, the epoch, and how many examples of it are done over all ranks."""

    step: int = 0
    epoch: int = 0
    examples: int = 0


@dataclass(frozen=True)
class Trained:
    """Means over the steps since the last one of these, over all ranks. `rate` is the learning rate."""

    loss: float
    accuracy: float
    rate: float
    examples_per_second: float
    data_wait_share: float


class TrainingReport:
    """Tells of one attempt, from `first_step` on."""

    def __init__(self, options: Options, ranks: int, training_examples: int, first_step: int) -> None:
        self._options = options
        self._training_examples = training_examples
        self._metrics = MetricsFile(ranks)
        self._writer = ScalarWriter(rotate_seconds=options.tensorboard_seconds, first_step=first_step)
        self._started = time.monotonic()
        self._logged_at = -math.inf  # The first is written: where the loss began.

    def begin(self, at: Position, total_steps: int) -> None:
        """What this attempt trains, and from where on."""
        options = self._options
        self._metrics.add(
            "start",
            {
                "step": at.step,
                "examples": self._trained(at),
                "totalSteps": total_steps,
                "model": options.model,
                "batchSize": options.batch_size,
                "data": data_uri(options.data),
                "trainingExamples": self._training_examples,
            },
        )

    def trained(self, at: Position, total_steps: int, now: Trained, *, last: bool) -> None:
        """How the training goes; `last` of an epoch or of the run."""
        epoch, speed = at.epoch + 1, now.examples_per_second
        progress.report(
            step=at.step, total_steps=total_steps, epoch=epoch, examples_per_second=speed, loss=now.loss
        )
        self._writer.add(
            at.step,
            {
                "train/loss": now.loss,
                "train/accuracy": now.accuracy,
                "train/learning_rate": now.rate,
                "train/examples_per_second": speed,
                "train/data_wait_share": now.data_wait_share,
            },
        )
        clock = time.monotonic()
        if not last and clock - self._logged_at < self._options.log_seconds:
            return
        self._logged_at = clock
        share = {"dataWaitShare": round(now.data_wait_share, 4)}
        self._add("train", at, now.loss, now.accuracy, speed, share)
        log.info(
            "step %d/%d epoch %d: loss %.4f, accuracy %.4f, %.0f examples/s",
            *(at.step, total_steps, epoch, now.loss, now.accuracy, speed),
        )

    def tested(self, at: Position, loss: float, accuracy: float, examples_per_second: float) -> None:
        """What a test has found."""
        progress.report(accuracy=accuracy)
        self._writer.add(at.step, {"test/accuracy": accuracy, "test/loss": loss})
        self._add("test", at, loss, accuracy, examples_per_second)
        log.info("step %d: test accuracy %.4f, loss %.4f", at.step, accuracy, loss)

    def end(self, at: Position, accuracy: float, facts: Mapping[str, object]) -> None:
        """That the training is done, and `facts` of its model."""
        self._metrics.add("end", {**facts, "step": at.step, "seconds": self._seconds()})
        progress.report(step=at.step, total_steps=at.step, accuracy=accuracy, final=True)

    def close(self) -> None:
        """Write what is not written yet."""
        self._writer.close()

    def _add(
        self,
        kind: str,
        at: Position,
        loss: float,
        accuracy: float,
        examples_per_second: float,
        more: Mapping[str, float] | None = None,
    ) -> None:
        self._metrics.add(
            kind,
            {
                "step": at.step,
                "epoch": round(at.epoch + at.examples / self._training_examples, 4),
                "examples": self._trained(at),
                "loss": loss,
                "accuracy": accuracy,
                "examplesPerSecond": round(examples_per_second, 1),
                "seconds": self._seconds(),
                **(more or {}),
            },
        )

    def _trained(self, at: Position) -> int:
        """Examples of all epochs so far, over all ranks."""
        return at.epoch * self._training_examples + at.examples

    def _seconds(self) -> float:
        return round(time.monotonic() - self._started, 3)
