"""Training of a picture classifier on ranks that each read their share of the examples."""

from __future__ import annotations

import logging
import math
import operator
import os
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dtj_trainer import contract
from dtj_trainer.data.errors import DataCorrupt, exit_on_data_error
from dtj_trainer.data.mixing import GOOD_SHARE
from dtj_trainer.data.pictures import Pictures
from dtj_trainer.data.sharding import Sharding, slice_of
from dtj_trainer.train.batches import picture_batches
from dtj_trainer.train.export_process import export_model
from dtj_trainer.train.loop import LossNotFinite, Stopped, Training
from dtj_trainer.train.meeting import MeetingPace, Sums
from dtj_trainer.train.protocols import TOP, Data, PictureModel, Position, Ranks, RanksDiverged, Saver, Tested
from dtj_trainer.train.report import TrainingReport
from dtj_trainer.train.stop import EXIT_CODE, StopRequest
from dtj_trainer.train.threads import cpu_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dtj_trainer.data.examples import Examples
    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.train.options import TrainingOptions


# machines_of counts the nodes and processors of all ranks: more ranks on the same processors train no faster.

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RankPlace(NamedTuple):
    """Where a rank runs. Bit n of `cpus` is set if the rank may use CPU n. `limit` is the container's, in CPUs."""

    node: str
    container: str
    cpus: int
    limit: float = math.inf


def own_place() -> RankPlace:
    """Return the place of this process. The boot ID names the node, because all its containers share the kernel."""
    container = socket.gethostname()
    try:
        node = _BOOT_ID.read_text().strip()
    except OSError:
        node = container
    return RankPlace(
        node, container, sum(1 << cpu for cpu in os.sched_getaffinity(0)), cpu_limit() or math.inf
    )


def machines_of(places: Iterable[RankPlace]) -> dict[str, object]:
    """Return the numbers of `nodes`, and of `processors` that the ranks may use together."""
    cpus: dict[str, dict[str, int]] = {}
    limits: dict[tuple[str, str], float] = {}
    for place in places:
        of_node = cpus.setdefault(place.node, {})
        of_node[place.container] = of_node.get(place.container, 0) | place.cpus
        limits[place.node, place.container] = place.limit
    total = 0.0
    for node, of_node in cpus.items():
        allowed = sum(min(each.bit_count(), limits[node, container]) for container, each in of_node.items())
        of_all = 0
        for each in of_node.values():
            of_all |= each
        total += min(allowed, of_all.bit_count())
    return {"nodes": len(cpus), "processors": max(int(total), 1)}


log = logging.getLogger(__name__)

TEST_BATCH = 500


def train(
    options: TrainingOptions, data: PictureSet, model: PictureModel[Data], ranks: Ranks, saver: Saver
) -> None:
    """Train to the end, from the newest checkpoint if there is one. Rank 0 then exports the model.

    Ends the process with 143 after SIGTERM, 1 when the training failed, 65 or 69 when the data can't be read.
    """
    seed, train, shares = options.seed, data.train, ranks.data_size
    step_size = options.step_size(shares)
    place = {"rank": ranks.data_rank, "ranks": shares, "seed": seed}
    sharding = Sharding(train.blocks, options.batch_size, **place, step_size=step_size, stock=train.stock)
    workers, augment = options.data_workers, options.augment
    batches = picture_batches(train, sharding, model.prepare, workers=workers, augment=augment, seed=seed)
    at, ramp = saver.resume()
    if at.examples and at.order_ranks:
        sharding.begun(at.epoch, at.order_ranks)
        if train.stock:
            train.widen(at.order_ranks / shares)
    # Before this barrier, SIGTERM ends a process at once, even one that waits for others: there is nothing to save
    # yet.
    ranks.barrier()
    stop = StopRequest()
    machines = machines_of(ranks.gather(own_place(), "machines"))
    report = None
    if ranks.rank == 0:
        report = TrainingReport(
            options, ranks.size, len(train), at.step, facts=machines, shares=shares, top5=data.classes > TOP
        )
        tell = partial(_tell_mixing, train, step_size, shares)
        threading.Thread(target=tell, name="mixing", daemon=True).start()
    test = PictureTest(data.test, model, ranks, report)
    of_epoch, of_end = test, None
    if data.validation is not None:
        of_epoch, of_end = PictureTest(data.validation, model, ranks, report, "validation"), test
    try:
        with exit_on_data_error():
            Training(options, batches, model, ranks, saver, at, ramp, stop, report, of_epoch, of_end).run()
    except Stopped as stopped:
        log.info("%s", stopped)
        sys.exit(EXIT_CODE)
    except (LossNotFinite, RanksDiverged) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    if options.export and ranks.rank == 0:
        export_model(Path(contract.root()) / contract.MODEL, lambda: stop.requested)


def _tell_mixing(examples: Examples, step_size: int, shares: int) -> None:
    """Log how well the steps mix the classes."""
    mixing = examples.mixing(math.ceil(step_size / shares), shares)
    if mixing is None:
        return
    low = mixing.share < GOOD_SHARE
    remedy = ": `dtj data stage SRC DST` writes shards in a random order" if low else ""
    log.log(
        logging.WARNING if low else logging.INFO, "mixing of the classes: %s%s", mixing.sentence(), remedy
    )


class PictureTest(NamedTuple):
    """The test of all ranks, each on its share of the examples of a split."""

    examples: Examples
    model: PictureModel[Any]
    ranks: Ranks
    report: TrainingReport | None
    split: str = "test"

    def accuracy(self, at: Position, stop: StopRequest) -> float | None:
        """Return the fraction of right answers over the whole set; None, on every rank, if a rank has to stop.

        Each example counts once, but for those that are skipped. The test can be interrupted, because it may take
        longer than the grace period.
        """
        shares, examples = self.ranks.data_size, len(self.examples)
        began = met_at = time.monotonic()
        pace = MeetingPace()
        own = slice_of(examples, rank=self.ranks.data_rank, ranks=shares)
        # Every rank makes the same number of passes, even if its share is smaller by one example.
        passes = range(0, math.ceil(examples / shares), TEST_BATCH)
        self.examples.expect(own[start : start + TEST_BATCH] for start in passes if start < len(own))
        sums, count = Tested(), 0
        for start in passes:
            if start and pace.step():
                now = time.monotonic()
                so_far = Sums(stop=float(stop.requested), seconds=now - met_at)
                met = so_far.over_all(self.ranks, "meeting in a test")
                if met.stop:
                    return None
                pace.met(met.seconds / self.ranks.size)
                met_at = now
            pictures = self._pictures(own[start : start + TEST_BATCH])
            if len(pictures) or self.model.tests_together:
                found = self.model.test(pictures.pixels, pictures.labels)
                sums, count = Tested(*map(operator.add, sums, found)), count + len(pictures)
        counted = float(self.ranks.counts)
        *totals, tested = self.ranks.total([counted * each for each in (*sums, count)], "test")
        if not tested:
            raise DataCorrupt(f"none of the {examples} examples of the {self.split} split can be read")
        if self.report:
            speed = tested / max(time.monotonic() - began, 1e-9)
            means = Tested(*(each / tested for each in totals))
            self.report.tested(at, means, speed, split=self.split, skipped=examples - round(tested))
        return totals[0] / tested

    def _pictures(self, ids: np.ndarray) -> Pictures:
        """Read the examples `ids` without those that can't be read. The result may be empty."""
        if not len(ids):
            return Pictures(np.empty((0, *self.examples.shape), np.uint8), np.empty(0, np.int64))
        return self.examples.read(ids).readable()
