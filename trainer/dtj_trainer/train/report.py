"""The reports of a training: progress, TensorBoard's scalars, metrics.jsonl and the log. Only rank 0 reports."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract, progress
from dtj_trainer.clock import now_text
from dtj_trainer.tensorboard import ScalarWriter
from dtj_trainer.train.meeting import Sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.train.options import TrainingOptions
    from dtj_trainer.train.protocols import Position, Tested


# metrics.jsonl: one JSON object a line, for people, for `dtj report` and for other plots.
#
# Kinds: `start` (at each start and resume of a training, with its model and step), `train` (means since the line
# before), `epoch` (those of an epoch that ends), `validation` and `test` (results on these splits) and `end` (when
# the training is complete). `examples` are those of all ranks since the first step.


class MetricsFile:
    """Appends to the job's metrics.jsonl. Only rank 0 of a job writes.

    Every line has `kind`, `time` (RFC 3339, UTC), `attempt`, `worldSize` and the values of `add`.
    """

    def __init__(self, world_size: int, path: Path | None = None) -> None:
        self._path = path or Path(contract.root()) / contract.METRICS_FILE
        attempt = os.environ.get(contract.ENV_ATTEMPT, "1")
        self._always = {"attempt": int(attempt) if attempt.isdecimal() else 1, "worldSize": world_size}

    def add(self, kind: str, values: Mapping[str, object]) -> None:
        """Append a line. Numbers that JSON does not have (NaN, infinity) become null."""
        finite = {name: _finite(value) for name, value in values.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"kind": kind, "time": now_text(), **self._always, **finite}) + "\n")


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


log = logging.getLogger(__name__)


class TrainingReport:
    """Reports one attempt, from `first_step` on.

    `facts`: more fields of the `start` line. `shares`: the number of shares of the examples; None: one for each rank.
    `top5`: whether the lines of epochs and tests have the top-5 accuracy.
    """

    def __init__(
        self,
        options: TrainingOptions,
        ranks: int,
        training_examples: int,
        first_step: int,
        subfolder: str = "",
        facts: Mapping[str, object] | None = None,
        *,
        shares: int | None = None,
        top5: bool = False,
    ) -> None:
        self._options, self._ranks, self._training_examples = options, ranks, training_examples
        self._shares = shares or ranks
        self._metrics = MetricsFile(ranks)
        folder = Path(contract.root()) / contract.TENSORBOARD / subfolder
        self._writer = ScalarWriter(folder, rotate_seconds=options.tensorboard_seconds, first_step=first_step)
        self._facts = dict(facts or {})
        self._started = time.monotonic()
        self._skipped = 0
        """Examples that were left out since the last line of training. Subclasses count them by themselves."""
        self._since_line = self._of_epoch = Sums()
        self._top5 = top5
        self._logged_at = -math.inf  # Log the first report, which shows the initial loss.

    def begin(self, at: Position, total_steps: int) -> None:
        """Report what this attempt trains, and its first step."""
        options = self._options
        self._metrics.add(
            "start",
            {
                "step": at.step,
                "examples": self._trained(at),
                "totalSteps": total_steps,
                "data": options.data or os.environ.get(contract.ENV_DATA_URI),
                "trainingExamples": self._training_examples,
                **self._facts,
                **self._of_what(),
            },
        )

    def trained(self, at: Position, total_steps: int, now: Sums, rate: float, *, last: bool) -> None:
        """Report the work of all ranks since the last call, which has at least one example.

        `last`: whether the step is the last of an epoch or of the run, or is due by --log-steps. `rate` is the
        learning rate.
        """
        epoch, (loss, accuracy, speed) = at.epoch + 1, self._means(now)
        waited = now.waited / max(now.seconds, 1e-9)
        progress.report(
            step=at.step, total_steps=total_steps, epoch=epoch, examples_per_second=speed, loss=loss
        )
        parts = now.step_seconds()
        self._writer.add(
            at.step,
            {
                "train/loss": loss,
                "train/accuracy": accuracy,
                "train/learning_rate": rate,
                "train/examples_per_second": speed,
                "train/data_wait_share": waited,
                **{f"step_seconds/{name}": seconds for name, seconds in parts.items()},
                **({"train/reduced_bytes_per_second": _rate_of_bytes(now)} if now.reduced else {}),
            },
        )
        self._since_line = self._since_line + now
        clock = time.monotonic()
        if last or clock - self._logged_at >= self._options.log_seconds:
            self._logged_at = clock
            self._write_line(at, total_steps, rate)
        self._add_to_epoch(at, now, rate)

    def _add_to_epoch(self, at: Position, now: Sums, rate: float) -> None:
        """Count the work for the line of the epoch, and write the line if the epoch ends."""
        self._of_epoch = self._of_epoch + now
        if at.examples >= self._training_examples:
            self._end_epoch(at, rate)

    def _write_line(self, at: Position, total_steps: int, rate: float) -> None:
        """Write the means over all steps since the last line of training."""
        now, self._since_line = self._since_line, Sums()
        loss, accuracy, speed = self._means(now)
        more: dict[str, object] = {
            "learningRate": rate,
            "dataWaitShare": round(now.waited / max(now.seconds, 1e-9), 4),
        }
        if parts := now.step_seconds():
            more["stepSeconds"] = {name: round(seconds, 6) for name, seconds in parts.items()}
        if now.reduced:
            more["reducedBytes"] = round(now.reduced / now.steps)
            more["reducedBytesPerSecond"] = round(_rate_of_bytes(now))
        self._skipped += round(now.skipped)
        more |= self._take_skipped()
        self._add("train", at, loss, accuracy, speed, more)
        log.info(
            "step %d/%d epoch %d: loss %.4f, accuracy %.4f, %.0f examples/s",
            *(at.step, total_steps, at.epoch + 1, loss, accuracy, speed),
        )

    def _end_epoch(self, at: Position, rate: float) -> None:
        """Write the means over the steps that this attempt made in the epoch that ends."""
        now, self._of_epoch = self._of_epoch, Sums()
        more: dict[str, object] = {"learningRate": rate, "epochExamples": round(now.examples)}
        if self._top5:
            more["top5Accuracy"] = now.top5 / now.examples
        self._add("epoch", at, *self._means(now), more)

    def _means(self, of: Sums) -> tuple[float, float, float]:
        """Return loss, accuracy, and examples a second."""
        speed = of.examples / max(of.seconds / self._ranks, 1e-9)
        return of.loss / of.examples, of.right / of.examples, speed

    def tested(
        self,
        at: Position,
        means: Tested,
        examples_per_second: float,
        *,
        split: str,
        skipped: int,
    ) -> None:
        """Report the result of a test on a split, `test` or `validation`.

        `means`: Tested, divided by the examples. `skipped`: examples that can't be read, which the means leave out.
        """
        progress.report(accuracy=means.right)
        self._writer.add(at.step, {f"{split}/accuracy": means.right, f"{split}/loss": means.loss})
        more: dict[str, object] = {"top5Accuracy": means.top5} if self._top5 else {}
        more |= {"skippedExamples": skipped} if skipped else {}
        self._add(split, at, means.loss, means.right, examples_per_second, more)
        log.info("step %d: %s accuracy %.4f, loss %.4f", at.step, split, means.right, means.loss)

    def end(self, at: Position, accuracy: float | None, facts: Mapping[str, object]) -> None:
        """Report the end of the training, with `facts` about its model."""
        self._metrics.add("end", {**facts, "step": at.step, "seconds": self._seconds()})
        progress.report(step=at.step, total_steps=at.step, accuracy=accuracy, final=True)

    def close(self) -> None:
        """Write pending data."""
        self._writer.close()

    def _take_skipped(self) -> dict[str, object]:
        """Return the field of the examples that were left out since the last call; nothing if there are none."""
        skipped, self._skipped = self._skipped, 0
        return {"skippedExamples": skipped} if skipped else {}

    def _add(
        self,
        kind: str,
        at: Position,
        loss: float,
        accuracy: float,
        examples_per_second: float,
        more: Mapping[str, object] | None = None,
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

    def _of_what(self) -> dict[str, object]:
        """Return the fields of the model and the batch. `batchSize`: the most examples of a share in a step."""
        batch_size = math.ceil(self._options.step_size(self._shares) / self._shares)
        return {"model": self._options.model, "batchSize": batch_size}

    def _trained(self, at: Position) -> int:
        """Return the examples of all epochs so far, over all ranks."""
        return at.epoch * self._training_examples + at.examples

    def _seconds(self) -> float:
        return round(time.monotonic() - self._started, 3)


def _rate_of_bytes(of: Sums) -> float:
    return of.reduced / max(of.exchanging, 1e-9)
