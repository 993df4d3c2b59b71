"""The training loop of every program: steps, meetings of the ranks, tests, checkpoints, the final model."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypedDict

from dtj_trainer.train.meeting import MEETING_SECONDS, MeetingPace, Sums
from dtj_trainer.train.protocols import Data
from dtj_trainer.train.schedule import Schedule, ramp_of, rate_scale
from dtj_trainer.train.stop import end_when_stopped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dtj_trainer.train.batches import Batches
    from dtj_trainer.train.options import TrainingOptions
    from dtj_trainer.train.picture_training import PictureTest
    from dtj_trainer.train.protocols import Model, Position, Ranks, Saver
    from dtj_trainer.train.report import TrainingReport
    from dtj_trainer.train.stop import StopRequest


# StepTimes keeps the number, the mean and the standard deviation of one rank's step times, in constant memory.

REPORTED_RANKS = 64
"""Only so many of the slowest ranks are reported, so that the report of 5,000 ranks stays small."""


class StepTimes:
    """Welford's running mean and variance (Technometrics 4, 1962) of the seconds between `begin` and `end`.

    A step lasts from the request for its batch to the return of the model's `train`. Tests, checkpoints and meetings
    of the ranks are no part of it. A GPU may still compute when `train` returns: the time is then that of a later
    step, so that the mean is right but the deviation is too large.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.mean = self._squares = 0.0
        self._began = 0.0

    def begin(self) -> None:
        """Begin a step."""
        self._began = time.monotonic()

    def end(self) -> None:
        """End the step that `begin` began."""
        seconds = time.monotonic() - self._began
        self.steps += 1
        before = seconds - self.mean
        self.mean += before / self.steps
        self._squares += before * (seconds - self.mean)

    def figures(self) -> tuple[int, float, float]:
        """Return the number of steps, their mean seconds, and the standard deviation (0 for fewer than two steps)."""
        return self.steps, self.mean, math.sqrt(self._squares / (self.steps - 1)) if self.steps > 1 else 0.0


class RankSteps(TypedDict):
    """The steps of one rank in this attempt. Times in seconds."""

    rank: int
    steps: int
    mean: float
    deviation: float


def slowest(ranks: Sequence[tuple[int, float, float]]) -> list[RankSteps]:
    """Return the steps of the REPORTED_RANKS slowest ranks, by rank. `ranks`: steps, mean and deviation of each."""
    rows = [
        RankSteps(rank=rank, steps=steps, mean=round(mean, 6), deviation=round(deviation, 6))
        for rank, (steps, mean, deviation) in enumerate(ranks)
        if steps
    ]
    return sorted(sorted(rows, key=lambda row: -row["mean"])[:REPORTED_RANKS], key=lambda row: row["rank"])


log = logging.getLogger(__name__)


class Stopped(Exception):
    """A rank was asked to stop, and the checkpoint is written."""


class LossNotFinite(Exception):
    """The loss is NaN or infinite, so that more training is pointless."""


def check_loss(loss: float, step: int) -> None:
    """Raise LossNotFinite unless the loss is finite."""
    if not math.isfinite(loss):
        raise LossNotFinite(f"the loss is {loss} at step {step}: try a lower --lr")


@dataclass
class Training(Generic[Data]):
    """One rank's part of a run, from position `at` on. `ramp` is a checkpoint's `Ramp.plain`. Only rank 0 has a
    report.

    `test` follows each epoch, and its accuracy decides which checkpoint is the best; without it no epoch is tested.
    With a `last_test`, the final model has the accuracy of that test. The ranks meet about every `meeting_seconds`;
    0: after each step.
    """

    options: TrainingOptions
    batches: Batches[Data]
    model: Model[Data]
    ranks: Ranks
    saver: Saver
    at: Position
    ramp: InitVar[dict[str, Any] | None]
    stop: StopRequest
    report: TrainingReport | None
    test: PictureTest | None = None
    last_test: PictureTest | None = None
    meeting_seconds: InitVar[float] = MEETING_SECONDS

    def __post_init__(self, ramp: dict[str, Any] | None, meeting_seconds: float) -> None:
        """Initialize the state that changes during the run."""
        self._schedule = self._make_schedule(ramp)
        self._accuracy: float | None = None
        self._rate = math.nan
        self._stopping = self._saves_prepared = self._compared = False
        self._pace = MeetingPace(meeting_seconds)
        self._step_times = StepTimes()
        self._meeting_at = self._saved_at = time.monotonic()

    def run(self) -> None:
        """Train to the end and write the final model.

        Raises Stopped (after SIGTERM and a checkpoint), LossNotFinite or RanksDiverged. Every rank raises the same.
        """
        if self.report:
            self.report.begin(self.at, self._total_steps())
        try:
            finished = False
            while not finished:
                if not self._done():
                    self._train_epoch()
                self._test()
                self._end_epoch()
                finished = self._done()
                self._save()
                if self._stopping and not finished:
                    self._leave()
            self._finish()
        finally:
            self.saver.close()
            if self.report:
                self.report.close()

    def _train_epoch(self) -> None:
        """Train to the end of the epoch, or of the run, with checkpoints at their intervals."""
        every, at = self.options.checkpoint_steps, self.at
        self._accuracy = None
        self._meeting_at = time.monotonic()
        self._step_times.begin()
        at.order_ranks = self.batches.sharding.order_ranks(at.epoch)
        for batch in self.batches.epoch(at.epoch, at.examples):
            self._rate = self._schedule.at(self._epochs_done)
            self.model.train(batch.data, batch.share, self._rate, at.step)
            self._step_times.end()
            at.step += 1
            at.examples = batch.share.position
            if not self._saves_prepared:
                self.saver.prepare_saves()
                self._saves_prepared = True
            save = every is not None and at.step % every == 0
            log_now = self._log_now()
            if self._pace.step() or self._last_step_done or save or log_now:
                save = self._meet(save=save, log_now=log_now)
            if self._last_step_done:
                break  # `run` writes the checkpoint after the epoch's test, because it contains the accuracy.
            if save:
                # A checkpoint has rank 0's statistics, and a resume gives them to all ranks. Average first, so that a
                # run without interruption goes on with the same statistics.
                self._average_statistics()
                self._save()
            if self._stopping:
                self._leave()
            if at.step == 1 and self.ranks.rank == 0:
                # Try the export after the first step, which the process of the trial would otherwise delay.
                self.model.try_export()
            self._step_times.begin()

    def _log_now(self) -> bool:
        """Return whether `--log-steps` asks for a report after this step."""
        return self.options.log_steps is not None and self.at.step % self.options.log_steps == 0

    def _meet(self, *, save: bool, log_now: bool) -> bool:
        """Add up and report the ranks' work since their last meeting; return whether all ranks save now."""
        now = time.monotonic()
        stop = self.stop.requested
        # Only rank 0's clock decides, because all ranks save together. While a save is under way, none is due.
        due = self.ranks.rank == 0 and now - self._saved_at >= self.options.checkpoint_seconds
        due = due and not self.saver.busy
        if save or stop or due or self._last_step_done:
            self.at.step += self.model.settle()
        seconds, waited = now - self._meeting_at, self.batches.take_waited()
        loss, right, examples, *more = self.model.take_sums()
        sums = loss, right, examples, float(stop), float(due), seconds, waited
        own = Sums(*sums, *self.model.take_parts(), self.batches.take_skipped(), *more)
        met = own.over_all(self.ranks, "meeting")
        self._pace.met(met.seconds / self.ranks.size)
        self._meeting_at = now
        self._stopping = met.stop > 0
        if not self._compared:
            self._compare(weights_alone=True)
            self._compared = True
        if met.examples:
            check_loss(met.loss / met.examples, self.at.step)
            if self.report:
                logged = self._last_step_done or log_now
                self.report.trained(self.at, self._total_steps(), met, self._rate, last=logged)
        return save or self._stopping or met.save > 0

    def _average_statistics(self) -> None:
        """Give all ranks the same statistics, and compare their weights: ranks that differ now would differ to the
        end.
        """
        self.model.average_statistics()
        self._compare(weights_alone=False)

    def _compare(self, *, weights_alone: bool) -> None:
        """Raise RanksDiverged unless the ranks have the same weights."""
        if self.ranks.size > 1:
            found = self.model.fingerprints(weights_alone=weights_alone)
            digest = hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()
            self.ranks.same_on_all(digest, found)

    def _test(self) -> None:
        """Test the model. Save and raise Stopped if a rank has to stop before the end of the test."""
        if self.test is None:
            return
        self._average_statistics()
        if not self._stopping:
            self._accuracy = self.test.accuracy(self.at, self.stop)
        if self._accuracy is None:
            self._save()
            self._leave()

    def _end_epoch(self) -> None:
        """Count a complete epoch only after its test: a resume from an earlier checkpoint repeats the test."""
        if self.at.examples >= self.batches.sharding.examples:
            self.at.epoch, self.at.examples = self.at.epoch + 1, 0

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        done = self._done()
        self.saver.save(self.at, self._schedule.ramp, self._accuracy, final=done, wait=done or self._stopping)

    def _leave(self) -> NoReturn:
        self.ranks.barrier()  # If a rank exited earlier, mpirun would kill the other ranks.
        raise Stopped(f"stopped at step {self.at.step}, with a checkpoint")

    def _finish(self) -> None:
        """Test the model a last time, and write the final model. Its checkpoint is saved already."""
        end_when_stopped(self.stop, "the final model is not written")
        if self.last_test is not None:
            self._accuracy = self.last_test.accuracy(self.at, self.stop)
            if self._accuracy is None:
                self._leave()
        facts = self.saver.export(self.at, self._accuracy)
        step_times = self.ranks.gather(self._step_times.figures(), "step times")
        if self.report:
            self.report.end(self.at, self._accuracy, {**facts, "stepTimes": slowest(step_times)})
        self.ranks.barrier()

    # The methods below compute the position in the schedule, and the steps that are done and left.

    @property
    def _epochs_done(self) -> float:
        return self.at.epoch + self.at.examples / self.batches.sharding.examples

    def _make_schedule(self, saved: dict[str, Any] | None) -> Schedule:
        """Return the schedule from this position on; `saved` is the ramp from the checkpoint."""
        options = self.options
        batches = options.rate_batches(self.ranks.data_size)
        scale = rate_scale(options.optimizer, batches) if options.scale_lr else 1.0
        start = options.warmup_from(scale)
        if start > scale and saved is None:
            raise SystemExit(
                f"--warmup-start={options.warmup_start:g} is above {options.lr * scale:g}, the learning rate at the "
                "end of the warm-up: give a lower --warmup-start, or leave the option out"
            )
        ramp = ramp_of(saved, scale, self._epochs_done, options.warmup_length, start)
        lengths = options.warmup_length, self._end_in_epochs()
        steps = options.step_epochs, options.step_gamma
        return Schedule(options.lr, ramp, *lengths, options.schedule, *steps, step_at=options.step_at)

    def _end_in_epochs(self) -> float:
        """Return the end of the training in epochs: all epochs, or the position of step `--max-steps`."""
        at, options, sharding = self.at, self.options, self.batches.sharding
        if options.max_steps is None:
            return options.epochs
        left, in_this_epoch = max(options.max_steps - at.step, 0), sharding.steps(at.examples)
        if left < in_this_epoch:
            end = at.epoch + (at.examples + left * sharding.step_size) / sharding.examples
        else:
            epochs, steps = divmod(left - in_this_epoch, sharding.steps())
            end = at.epoch + 1 + epochs + steps * sharding.step_size / sharding.examples
        return min(end, options.epochs)

    @property
    def _last_step_done(self) -> bool:
        """Whether the last step of the epoch, or of the run, is done."""
        return self.at.examples >= self.batches.sharding.examples or self._steps_done()

    def _done(self) -> bool:
        return self.at.epoch >= self.options.epochs or self._steps_done()

    def _steps_done(self) -> bool:
        """Return whether `--max-steps` is reached. A resume from a run with a higher limit exceeds it at once."""
        limit = self.options.max_steps
        return limit is not None and self.at.step >= limit

    def _total_steps(self) -> int:
        at, options = self.at, self.options
        if self._done():
            return at.step
        later = (options.epochs - at.epoch - 1) * self.batches.sharding.steps()
        total = at.step + self.batches.sharding.steps(at.examples) + later
        return min(total, options.max_steps or total)
