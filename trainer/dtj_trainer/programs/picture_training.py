"""Training of a picture classifier by several ranks: the loop, its checkpoints, its tests. Of no framework."""

from __future__ import annotations

import logging
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NoReturn

from dtj_trainer import contract, progress
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.data.errors import exit_on_data_error
from dtj_trainer.data.pictures import data_uri, load_pictures
from dtj_trainer.data.sharding import Sharding, slice_of
from dtj_trainer.programs.batches import BatchMaker
from dtj_trainer.programs.learner import Data, Learner, RanksDiverged
from dtj_trainer.programs.meeting import Pace, Sums
from dtj_trainer.programs.metrics import MetricsFile
from dtj_trainer.programs.resume import Expected, resume
from dtj_trainer.programs.schedule import Schedule
from dtj_trainer.programs.stop import EXIT_CODE, StopRequest
from dtj_trainer.tensorboard import ScalarWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.programs.options import Options

log = logging.getLogger(__name__)

TEST_BATCH = 500


class Stopped(Exception):
    """A rank was asked to stop; the checkpoint is written."""


class LossNotFinite(Exception):
    """The loss is NaN or infinite: training on is pointless."""


@dataclass
class Position:
    """How far a run is: steps made, the epoch, and how many examples of it are done over all ranks."""

    step: int = 0
    epoch: int = 0
    examples: int = 0


def train(options: Options, learner_for: Callable[[PictureSet], Learner[Data]]) -> None:
    """Read the data and train to the end.

    Ends the process with 143 after SIGTERM, 65 when the data can't be used, 1 when the training went wrong.
    """
    with exit_on_data_error():
        data = load_pictures(data_uri(options.data))
    training = Training(options, data, learner_for(data))
    try:
        training.run()
    except Stopped as stopped:
        log.info("%s", stopped)
        sys.exit(EXIT_CODE)
    except (LossNotFinite, RanksDiverged) as error:
        sys.exit(f"{type(error).__name__}: {error}")


class Training(Generic[Data]):
    """One rank's part of a run; rank 0 writes what is kept."""

    def __init__(self, options: Options, data: PictureSet, learner: Learner[Data]) -> None:
        self._options = options
        self._data = data
        self._learner = learner
        self._rank, self._ranks = learner.rank, learner.ranks
        scale = self._ranks if options.scale_lr else 1
        self._schedule = Schedule(options.lr, scale, options.warmup_epochs, options.epochs, options.schedule)
        self._sharding = Sharding(
            len(data.train), options.batch_size, rank=self._rank, ranks=self._ranks, seed=options.seed
        )
        self._batches = BatchMaker(
            data.train,
            self._sharding,
            learner.prepare,
            workers=options.data_workers,
            augment=options.augment,
            seed=options.seed,
        )
        self._at = Position()
        self._accuracy = math.nan
        self._rate = math.nan
        self._pace = Pace()
        self._meeting_at = self._started = self._saved_at = time.monotonic()
        self._logged_at = -math.inf  # The first meeting is written: where the loss began.

    def run(self) -> None:
        """Train to the end, from the newest checkpoint if there is one, and write the final model.

        Raises Stopped (after SIGTERM, the checkpoint written), LossNotFinite or RanksDiverged, on every
        rank alike.
        """
        self._resume()
        stop = StopRequest()
        self._metrics = MetricsFile(self._ranks)
        self._writer = ScalarWriter(
            rotate_seconds=self._options.tensorboard_seconds, first_step=self._at.step
        )
        self._started = self._meeting_at = self._saved_at = time.monotonic()
        if self._rank == 0:
            self._write_start()
        try:
            while not self._done():
                self._train_epoch(stop)
                self._test()
            if math.isnan(self._accuracy):
                self._test()
            self._finish()
        finally:
            self._writer.close()

    # --- the loop -------------------------------------------------------------------------------

    def _train_epoch(self, stop: StopRequest) -> None:
        """Train to the end of the epoch, or of the run; saves on the way."""
        options, at = self._options, self._at
        self._meeting_at = time.monotonic()
        for batch in self._batches.epoch(at.epoch, at.examples):
            self._rate = self._schedule.at(at.epoch + at.examples / len(self._data.train))
            self._learner.train(batch.data, batch.share, self._rate, at.step)
            at.step += 1
            at.examples = batch.share.position
            last = at.examples >= len(self._data.train) or self._steps_done()
            save = options.checkpoint_steps is not None and at.step % options.checkpoint_steps == 0
            if self._pace.step() or last or save:
                met = self._meet(stop, last=last)
                if met.stop:
                    self._save_and_leave()
                save = save or met.save > 0
            if last:
                break  # It is saved with the result of the test.
            if save:
                self._save()
        if at.examples >= len(self._data.train):
            at.epoch, at.examples = at.epoch + 1, 0

    def _meet(self, stop: StopRequest, *, last: bool) -> Sums:
        """Add up what the ranks did since they last met, and tell about it."""
        now = time.monotonic()
        loss, right, examples = self._learner.take_sums()
        # One clock decides: a save is something that all ranks do together.
        due = self._rank == 0 and now - self._saved_at >= self._options.checkpoint_seconds
        seconds, waited = now - self._meeting_at, self._batches.take_waited()
        met = Sums(loss, right, examples, float(stop.requested), float(due), seconds, waited).over_all(
            self._learner, "meeting"
        )
        self._pace.met(met.seconds / self._ranks)
        self._meeting_at = now
        mean = met.loss / met.examples
        if not math.isfinite(mean):
            raise LossNotFinite(f"the loss is {mean} at step {self._at.step}: try a lower --lr")
        if self._rank == 0:
            rate = met.examples / max(met.seconds / self._ranks, 1e-9)
            self._tell(mean, met.right / met.examples, rate, met.waited / max(met.seconds, 1e-9), last=last)
        return met

    def _tell(self, loss: float, accuracy: float, rate: float, data_wait_share: float, *, last: bool) -> None:
        at, now = self._at, time.monotonic()
        total = self._total_steps()
        progress.report(
            step=at.step, total_steps=total, epoch=at.epoch + 1, examples_per_second=rate, loss=loss
        )
        self._writer.add(
            at.step,
            {
                "train/loss": loss,
                "train/accuracy": accuracy,
                "train/learning_rate": self._rate,
                "train/examples_per_second": rate,
                "train/data_wait_share": data_wait_share,
            },
        )
        if last or now - self._logged_at >= self._options.log_seconds:
            self._logged_at = now
            share = {"dataWaitShare": round(data_wait_share, 4)}
            self._write_metrics("train", loss, accuracy, rate, share)
            log.info(
                "step %d/%d epoch %d: loss %.4f, accuracy %.4f, %.0f examples/s",
                at.step,
                total,
                at.epoch + 1,
                loss,
                accuracy,
                rate,
            )

    def _test(self) -> None:
        """Count the right answers over the whole test set, each rank its share, and save with the result."""
        learner, test = self._learner, self._data.test
        learner.average_statistics()
        began = time.monotonic()
        mine = slice_of(len(test), rank=self._rank, ranks=self._ranks)
        right = loss = 0.0
        for start in range(0, len(mine), TEST_BATCH):
            chosen = mine[start : start + TEST_BATCH]
            found = learner.test(test.pixels[chosen], test.labels[chosen])
            right, loss = right + found[0], loss + found[1]
        right, loss, examples = learner.total([right, loss, float(len(mine))], "test")
        self._accuracy, loss = right / examples, loss / examples
        if self._rank == 0:
            at = self._at
            progress.report(accuracy=self._accuracy)
            self._writer.add(at.step, {"test/accuracy": self._accuracy, "test/loss": loss})
            self._write_metrics("test", loss, self._accuracy, examples / max(time.monotonic() - began, 1e-9))
            log.info("step %d: test accuracy %.4f, loss %.4f", at.step, self._accuracy, loss)
        self._write_checkpoint(self._accuracy)

    def _finish(self) -> None:
        """Compare the ranks' weights and write the final model."""
        digest = self._learner.check_identical()
        log.info("the weights are the same on all %d ranks; sha256 of this one's: %s", self._ranks, digest)
        if self._rank == 0:
            folder = Path(contract.root()) / contract.MODEL
            facts = {
                "accuracy": self._accuracy,
                "steps": self._at.step,
                "epochs": self._at.epoch,
                "worldSize": self._ranks,
                "weightsSha256": digest,
            }
            self._learner.write_model(folder, facts)
            self._metrics.add(
                "end", {**facts, "step": self._at.step, "seconds": round(time.monotonic() - self._started, 3)}
            )
            progress.report(
                step=self._at.step, total_steps=self._at.step, accuracy=self._accuracy, final=True
            )
            log.info("the model is in %s", folder)
        self._learner.barrier()

    def _write_start(self) -> None:
        """What this attempt trains, and from where on."""
        options = self._options
        self._metrics.add(
            "start",
            {
                "step": self._at.step,
                "examples": self._trained,
                "totalSteps": self._total_steps(),
                "model": options.model,
                "batchSize": options.batch_size,
                "data": data_uri(options.data),
                "trainingExamples": len(self._data.train),
            },
        )

    @property
    def _trained(self) -> int:
        """Examples of all epochs so far, over all ranks."""
        return self._at.epoch * len(self._data.train) + self._at.examples

    def _write_metrics(
        self, kind: str, loss: float, accuracy: float, rate: float, more: Mapping[str, float] | None = None
    ) -> None:
        at = self._at
        done = at.epoch + at.examples / len(self._data.train)
        self._metrics.add(
            kind,
            {
                "step": at.step,
                "epoch": round(done, 4),
                "examples": self._trained,
                "loss": loss,
                "accuracy": accuracy,
                "examplesPerSecond": round(rate, 1),
                "seconds": round(time.monotonic() - self._started, 3),
                **(more or {}),
            },
        )

    def _done(self) -> bool:
        return self._at.epoch >= self._options.epochs or self._steps_done()

    def _steps_done(self) -> bool:
        """Whether `--max-steps` are made, or more: a checkpoint may be of a run that was to make more."""
        limit = self._options.max_steps
        return limit is not None and self._at.step >= limit

    def _total_steps(self) -> int:
        at, options = self._at, self._options
        left = self._sharding.steps(at.examples) + (options.epochs - at.epoch - 1) * self._sharding.steps()
        total = at.step + max(left, 0)
        return min(total, options.max_steps) if options.max_steps else total

    # --- checkpoints ----------------------------------------------------------------------------

    def _save(self) -> None:
        """Save what all ranks have; all of them do so together."""
        # A resumed rank goes on with rank 0's statistics: so must those that were not interrupted.
        self._learner.average_statistics()
        self._write_checkpoint()

    def _save_and_leave(self) -> NoReturn:
        self._save()
        self._learner.barrier()  # A rank that leaves earlier would have the others killed.
        raise Stopped(f"stopped at step {self._at.step}, with a checkpoint")

    def _write_checkpoint(self, accuracy: float | None = None) -> None:
        self._saved_at = time.monotonic()
        if self._rank == 0:
            checkpoints.save(self._at.step, self._write_state, metric=accuracy)

    def _write_state(self, folder: Path) -> None:
        at = self._at
        run = {
            "name": self._options.model,
            "optimizer": self._options.optimizer,
            "position": [at.step, at.epoch, at.examples],
            "trainingExamples": len(self._data.train),
        }
        self._learner.write_state(folder / self._learner.state_file, run)

    def _resume(self) -> None:
        """Go on from rank 0's newest checkpoint: to the step and example where it was made."""
        options = self._options
        run = resume(self._learner, Expected(options.model, options.optimizer, len(self._data.train)))
        if run is None:
            return
        self._at = Position(*run["position"])
        if self._rank == 0:
            log.info("going on from the checkpoint of step %d, epoch %d", self._at.step, self._at.epoch + 1)
