"""Training of a picture classifier on ranks that each hold the whole data set."""

from __future__ import annotations

import logging
import math
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer.data.sharding import Sharding, slice_of
from dtj_trainer.train.batches import picture_batches
from dtj_trainer.train.loop import LossNotFinite, Stopped, Training
from dtj_trainer.train.meeting import Pace, Sums
from dtj_trainer.train.protocols import Data, PictureModel, Position, Ranks, RanksDiverged, Saver
from dtj_trainer.train.report import TrainingReport
from dtj_trainer.train.stop import EXIT_CODE, StopRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from dtj_trainer.data.pictures import Pictures, PictureSet
    from dtj_trainer.train.options import Options

log = logging.getLogger(__name__)

TEST_BATCH = 500


def train(options: Options, data: PictureSet, model: PictureModel[Data], ranks: Ranks, saver: Saver) -> None:
    """Train to the end, from the newest checkpoint if there is one.

    Ends the process with 143 after SIGTERM, with 1 when the training failed.
    """
    rank, seed, train = ranks.rank, options.seed, data.train
    size = options.batch_size * options.grad_accumulation
    sharding = Sharding(len(train), size, rank=rank, ranks=ranks.size, seed=seed)
    workers, augment = options.data_workers, options.augment
    batches = picture_batches(train, sharding, model.prepare, workers=workers, augment=augment, seed=seed)
    at, ramp = saver.resume()
    # Before this barrier, SIGTERM ends a process at once, even one that waits for others: it has nothing to save.
    ranks.barrier()
    stop = StopRequest()
    report = TrainingReport(options, ranks.size, len(train), at.step) if rank == 0 else None
    test = PictureTest(data.test, model.test, ranks, report)
    try:
        Training(options, batches, model, ranks, saver, at, ramp, stop, report, test).run()
    except Stopped as stopped:
        log.info("%s", stopped)
        sys.exit(EXIT_CODE)
    except (LossNotFinite, RanksDiverged) as error:
        sys.exit(f"{type(error).__name__}: {error}")


class PictureTest(NamedTuple):
    """The test of all ranks, each on its share of the pictures. `answer` is `PictureModel.test`."""

    pictures: Pictures
    answer: Callable[[np.ndarray, np.ndarray], tuple[float, float]]
    ranks: Ranks
    report: TrainingReport | None

    def accuracy(self, at: Position, stop: StopRequest) -> float | None:
        """Return the fraction of right answers over the whole set; None, on every rank, if a rank has to stop.

        The test can be interrupted, because it may take longer than the grace period.
        """
        size, examples = self.ranks.size, len(self.pictures)
        began = met_at = time.monotonic()
        pace = Pace()
        own = slice_of(examples, rank=self.ranks.rank, ranks=size)
        right = loss = 0.0
        # Every rank makes the same number of passes, even if its share is smaller by one example.
        for start in range(0, math.ceil(examples / size), TEST_BATCH):
            if start and pace.step():
                now = time.monotonic()
                so_far = Sums(stop=float(stop.requested), seconds=now - met_at)
                met = so_far.over_all(self.ranks, "meeting in a test")
                if met.stop:
                    return None
                pace.met(met.seconds / size)
                met_at = now
            chosen = own[start : start + TEST_BATCH]
            if len(chosen):
                found = self.answer(self.pictures.pixels[chosen], self.pictures.labels[chosen])
                right, loss = right + found[0], loss + found[1]
        right, loss = self.ranks.total([right, loss], "test")
        if self.report:
            speed = examples / max(time.monotonic() - began, 1e-9)
            self.report.tested(at, loss / examples, right / examples, speed)
        return right / examples
