"""Training of a picture classifier by several ranks: the loop, its checkpoints, its tests. Of no framework."""

from __future__ import annotations

import logging
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.data.errors import exit_on_data_error
from dtj_trainer.data.pictures import data_uri, load_pictures
from dtj_trainer.data.sharding import Sharding, slice_of
from dtj_trainer.programs.batches import BatchMaker
from dtj_trainer.programs.learner import Data, Learner, RanksDiverged
from dtj_trainer.programs.meeting import Pace, Sums
from dtj_trainer.programs.resume import Expected, resume
from dtj_trainer.programs.schedule import Schedule, ramp_of, rate_scale
from dtj_trainer.programs.stop import EXIT_CODE, StopRequest, end_when_stopped
from dtj_trainer.programs.training_report import Position, Trained, TrainingReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.programs.options import Options

log = logging.getLogger(__name__)

TEST_BATCH = 500


class Stopped(Exception):
    """A rank was asked to stop; the checkpoint is written."""


class LossNotFinite(Exception):
    """The loss is NaN or infinite: training on is pointless."""


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
        self._schedule = self._make_schedule(None)
        self._accuracy = math.nan
        self._rate = math.nan
        self._pace = Pace()
        self._meeting_at = self._saved_at = time.monotonic()
        self._report: TrainingReport | None = None

    def run(self) -> None:
        """Train to the end, from the newest checkpoint if there is one, and write the final model.

        Raises Stopped (after SIGTERM, the checkpoint written), LossNotFinite or RanksDiverged, on every
        rank alike.
        """
        self._resume()
        # Until here SIGTERM ends a process at once, also one that waits for others: there is nothing to save.
        self._learner.barrier()
        stop = StopRequest()
        self._meeting_at = self._saved_at = time.monotonic()
        if self._rank == 0:
            examples, here = len(self._data.train), self._at
            self._report = TrainingReport(self._options, self._ranks, examples, here.step)
            self._report.begin(here, self._total_steps())
        try:
            while not self._done():
                self._train_epoch(stop)
                self._test(stop)
                self._end_epoch()
                self._write_checkpoint(self._accuracy)
            if math.isnan(self._accuracy):
                self._test(stop)
                self._write_checkpoint(self._accuracy)
            self._finish(stop)
        finally:
            if self._report:
                self._report.close()

    # --- the loop -------------------------------------------------------------------------------

    def _train_epoch(self, stop: StopRequest) -> None:
        """Train to the end of the epoch, or of the run; saves on the way."""
        options, at = self._options, self._at
        self._meeting_at = time.monotonic()
        for batch in self._batches.epoch(at.epoch, at.examples):
            self._rate = self._schedule.at(self._epochs_done)
            self._learner.train(batch.data, batch.share, self._rate, at.step)
            at.step += 1
            at.examples = batch.share.position
            last = at.examples >= len(self._data.train) or self._steps_done()
            save = options.checkpoint_steps is not None and at.step % options.checkpoint_steps == 0
            if self._pace.step() or last or save:
                met = self._meet(stop, last=last)
                if met.stop:
                    self._save()
                    self._leave()
                save = save or met.save > 0
            if last:
                break  # It is saved with the result of the test.
            if save:
                self._save()

    def _end_epoch(self) -> None:
        """Count the epoch, if it was one, once it is tested: a resume before that goes on with the test."""
        if self._at.examples >= len(self._data.train):
            self._at.epoch, self._at.examples = self._at.epoch + 1, 0

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
        if self._report:
            here = Trained(
                mean,
                met.right / met.examples,
                self._rate,
                met.examples / max(met.seconds / self._ranks, 1e-9),
                met.waited / max(met.seconds, 1e-9),
            )
            self._report.trained(self._at, self._total_steps(), here, last=last)
        return met

    def _test(self, stop: StopRequest) -> None:
        """Count the right answers over the whole test set, each rank its share.

        Raises Stopped, on every rank, when one of them has to stop meanwhile.
        """
        learner, test = self._learner, self._data.test
        learner.average_statistics()
        began = self._meeting_at = time.monotonic()
        pace = Pace()
        mine = slice_of(len(test), rank=self._rank, ranks=self._ranks)
        right = loss = 0.0
        # The same number on every rank, also where its share is smaller by an example.
        for start in range(0, math.ceil(len(test) / self._ranks), TEST_BATCH):
            if start and pace.step():
                self._meet_in_test(stop, pace)
            chosen = mine[start : start + TEST_BATCH]
            if len(chosen):
                found = learner.test(test.pixels[chosen], test.labels[chosen])
                right, loss = right + found[0], loss + found[1]
        examples = float(len(test))
        right, loss = learner.total([right, loss], "test")
        self._accuracy, loss = right / examples, loss / examples
        if self._report:
            speed = examples / max(time.monotonic() - began, 1e-9)
            self._report.tested(self._at, loss, self._accuracy, speed)

    def _meet_in_test(self, stop: StopRequest, pace: Pace) -> None:
        """A test may take longer than a program gets to end: leave it when a rank has to stop."""
        now = time.monotonic()
        mine = Sums(stop=float(stop.requested), seconds=now - self._meeting_at)
        met = mine.over_all(self._learner, "meeting in a test")
        pace.met(met.seconds / self._ranks)
        self._meeting_at = now
        if met.stop:
            self._write_checkpoint()
            self._leave()

    def _finish(self, stop: StopRequest) -> None:
        """Compare the ranks' weights and write the final model; all that it is made from is saved."""
        end_when_stopped(stop, "the final model is not written")
        digest = self._learner.check_identical()
        log.info("the weights are the same on all %d ranks; sha256 of this one's: %s", self._ranks, digest)
        if self._report:
            folder = Path(contract.root()) / contract.MODEL
            facts = {
                "accuracy": self._accuracy,
                "steps": self._at.step,
                "epochs": self._at.epoch,
                "worldSize": self._ranks,
                "weightsSha256": digest,
            }
            self._learner.write_model(folder, facts)
            self._report.end(self._at, self._accuracy, facts)
            log.info("the model is in %s", folder)
        self._learner.barrier()

    # --- how far --------------------------------------------------------------------------------

    @property
    def _epochs_done(self) -> float:
        return self._at.epoch + self._at.examples / len(self._data.train)

    def _make_schedule(self, saved: dict[str, Any] | None) -> Schedule:
        """The schedule from here on; `saved` is what the checkpoint says of its ramp."""
        options = self._options
        scale = rate_scale(options.optimizer, self._ranks) if options.scale_lr else 1.0
        ramp = ramp_of(saved, scale, self._epochs_done, options.warmup_epochs)
        return Schedule(options.lr, ramp, options.warmup_epochs, self._end_in_epochs(), options.schedule)

    def _end_in_epochs(self) -> float:
        """When the training ends, in epochs: all of them, or where `--max-steps` are made."""
        at, options = self._at, self._options
        if options.max_steps is None:
            return options.epochs
        left, in_this_epoch = max(options.max_steps - at.step, 0), self._sharding.steps(at.examples)
        if left < in_this_epoch:
            end = at.epoch + (at.examples + left * self._sharding.step_size) / len(self._data.train)
        else:
            epochs, steps = divmod(left - in_this_epoch, self._sharding.steps())
            end = at.epoch + 1 + epochs + steps * self._sharding.step_size / len(self._data.train)
        return min(end, options.epochs)

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

    def _leave(self) -> NoReturn:
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
            "ramp": self._schedule.ramp.plain(),
        }
        self._learner.write_state(folder / self._learner.state_file, run)

    def _resume(self) -> None:
        """Go on from rank 0's newest checkpoint: to the step and example where it was made."""
        options = self._options
        run = resume(self._learner, Expected(options.model, options.optimizer, len(self._data.train)))
        if run is None:
            return
        self._at = Position(*run["position"])
        self._schedule = self._make_schedule(run.get("ramp"))
        if self._rank == 0:
            log.info("going on from the checkpoint of step %d, epoch %d", self._at.step, self._at.epoch + 1)
