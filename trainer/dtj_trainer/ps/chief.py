"""The chief: distributes the work, collects the results, and writes all files of the training."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import tensorflow as tf

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.keras import models, saved_model
from dtj_trainer.ps import state, worker_pictures
from dtj_trainer.ps.cluster import silent
from dtj_trainer.ps.parameters import Parameters, set_weights
from dtj_trainer.ps.report import ServerTrainingReport
from dtj_trainer.ps.state import TrainingState
from dtj_trainer.ps.updates import Asynchronous, Synchronous, WorkerStep
from dtj_trainer.ps.worker_pictures import Dealt
from dtj_trainer.train.array_process import in_memory
from dtj_trainer.train.background_save import BackgroundSave
from dtj_trainer.train.batches import Batch, Batches
from dtj_trainer.train.export_process import export_model
from dtj_trainer.train.loop import LossNotFinite, Training, check_loss
from dtj_trainer.train.own_model import is_own
from dtj_trainer.train.protocols import Model, Position, Ranks, Saver
from dtj_trainer.train.seeds import seed_of
from dtj_trainer.train.smallest_pass import smallest_share
from dtj_trainer.train.staged_arrays import StagedArrays
from dtj_trainer.train.state_file import write_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import keras

    from dtj_trainer.data.sharding import Share
    from dtj_trainer.ps.cluster import Cluster
    from dtj_trainer.ps.options import ServerOptions
    from dtj_trainer.ps.updates import StepResult, Updates
    from dtj_trainer.train.schedule import Ramp
    from dtj_trainer.train.stop import StopRequest

log = logging.getLogger(__name__)

STALL_SECONDS = 120.0
"""The longest time without the end of a step, after the first step: more than most steps take, even with a
compilation."""
STALL_STEPS = 10
"""A step may also take this many times as long as the longest step so far."""
FIRST_STALL_SECONDS = 600.0
"""The longest time to create the variables, and to the end of the first step, whose duration is unknown."""


class Pulse:
    """When the training last made progress, by time.monotonic, and how many seconds the next progress may take.

    `at` is None when no more progress is expected.
    """

    def __init__(self) -> None:
        self.at: float | None = time.monotonic()
        self.limit = FIRST_STALL_SECONDS
        self._longest = 0.0

    def beat(self) -> None:
        """Record progress."""
        self.at = time.monotonic()

    def step_ended(self, seconds: float) -> None:
        """Record the end of a step that took a worker `seconds`."""
        self.beat()  # Call `beat` before the limit changes: the new limit may be smaller.
        self._longest = max(self._longest, seconds)
        self.limit = max(STALL_SECONDS, STALL_STEPS * self._longest)

    def stop(self) -> None:
        """Expect no more progress."""
        self.at = None


def train(options: ServerOptions, cluster: Cluster, stop: StopRequest, pulse: Pulse) -> None:
    """Train on servers that answer. Raises what `Training.run` raises, NotOurCheckpoint or an error of TensorFlow.

    Raises SystemExit for a network that can't make the smallest pass of the training.
    """
    # Many errors of a lost worker name a server that waited for that worker. The coordinator ignores this many
    # errors in all before it considers the server lost. Errors of a server that is lost arrive within a second.
    os.environ.setdefault("TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES", "20")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    facts = worker_pictures.facts(coordinator)
    network = models.build(options.model, facts.shape, facts.classes, options.seed)
    shards = cluster.workers if options.updates == "Synchronous" else 1
    if is_own(options.model) and checkpoints.newest() is None:
        least = smallest_share(facts.examples, options, shards)
        saved_model.try_pass(network, least, facts.shape, facts.classes)
        saved_model.try_save(network)
    size, stock = options.batch_size * shards, facts.stock
    sharding = Sharding(facts.blocks, size, rank=0, ranks=1, seed=options.seed, stock=stock)
    here = TrainingState(
        options.model, facts.shape, facts.classes, options.optimizer, facts.examples, order=sharding.name
    )
    here.class_names = facts.class_names
    parameters = Parameters(network, options, cluster.ps)
    saver = ChiefSaver(options, here, network, parameters, pulse, facts.class_names)
    at, ramp = saver.resume()
    report = ServerTrainingReport(options, cluster, saver.state)
    step = WorkerStep(network, parameters, facts.shape, options.label_smoothing)
    kind = Synchronous if options.updates == "Synchronous" else Asynchronous
    updates: Updates = kind(coordinator, step, parameters, workers=cluster.workers)
    batches = Batches(sharding, _dealer(sharding))
    model = ChiefModel(updates, parameters, saver.state, report, pulse)
    pulse.beat()
    ranks = Ranks()  # The chief trains alone: the workers are part of its model.
    Training(options, batches, model, ranks, saver, at, ramp, stop, report, meeting_seconds=0.0).run()
    if options.export:
        export_model(Path(contract.root()) / contract.MODEL, lambda: stop.requested)


def _dealer(sharding: Sharding) -> Callable[[int, Share], Batch[Dealt]]:
    """Return a function that gives a step's examples, which workers read, and the blocks that coming steps need."""
    order_of = functools.lru_cache(maxsize=2)(sharding.order)

    def deal(epoch: int, share: Share) -> Batch[Dealt]:
        begin = share.position - share.total
        chance = seed_of(sharding.seed, epoch * sharding.examples + begin, 0)
        blocks = order_of(epoch).blocks_ahead(begin)
        return Batch(Dealt(share.indices, blocks, epoch, chance=chance), share)

    return deal


class ChiefModel(Model[Dealt]):
    """See Model. The workers read the examples of a batch. A step may end after `train` returns."""

    def __init__(
        self,
        updates: Updates,
        parameters: Parameters,
        here: TrainingState,
        report: ServerTrainingReport,
        pulse: Pulse,
    ) -> None:
        self._updates, self._parameters = updates, parameters
        self._state, self._report, self._pulse = here, report, pulse
        self._sums = [0.0] * 4
        self._counted_at: float | None = None

    def train(self, data: Dealt, share: Share, rate: float, step: int) -> None:
        """See Model."""
        del step  # The servers count the steps.
        self._take(self._updates.submit(data._replace(rate=rate)))
        self._state.trained += share.count

    def settle(self) -> int:
        """See Model. Afterwards variables, step and position are consistent."""
        self._take(self._updates.drain())
        counted = int(self._parameters.step.numpy())
        twice = counted - self._state.step
        if twice:
            self._state.applied_twice += twice
            log.warning("step %d: %d batches were applied twice when a worker was lost", counted, twice)
        self._state.step = counted
        self._count_time()
        return twice

    def take_sums(self) -> Sequence[float]:
        """See Model."""
        taken, self._sums = self._sums, [0.0] * 4
        return taken

    def average_statistics(self) -> None:
        """See Model. The parameter servers hold a single copy of the statistics."""

    def _take(self, results: list[StepResult]) -> None:
        for result in results:
            self._state.step += 1
            self._pulse.step_ended(max(times.total for times in result.times))
            check_loss(result.loss, self._state.step)
            self._count_time()
            self._report.add(result)
            found = (result.loss, result.right, result.examples, result.top5)
            self._sums = [before + more for before, more in zip(self._sums, found, strict=True)]

    def _count_time(self) -> None:
        """Add up the seconds from the end of the first step, during which TensorFlow compiles."""
        now = time.monotonic()
        if self._counted_at is not None:
            self._state.seconds += now - self._counted_at
        self._counted_at = now


class ChiefSaver(Saver):
    """See Saver. ChiefModel also updates `state`."""

    def __init__(
        self,
        options: ServerOptions,
        here: TrainingState,
        network: keras.Model,
        parameters: Parameters,
        pulse: Pulse,
        class_names: tuple[str, ...] = (),
    ) -> None:
        self.state, self._class_names = here, class_names
        self._options, self._network, self._parameters, self._pulse = options, network, parameters, pulse
        self._background, self._staged = BackgroundSave(), StagedArrays()

    def resume(self) -> tuple[Position, None]:
        """See Saver. Raises NotOurCheckpoint."""
        newest = checkpoints.newest()
        if newest is None:
            return Position(), None
        saved, vectors = state.load(newest.path)
        state.check(saved, self.state, newest.path)
        self._parameters.restore(vectors)
        here = self.state
        self.state = replace(
            saved, training_examples=here.training_examples, order=here.order, class_names=here.class_names
        )
        log.info("resuming from the checkpoint of step %d, epoch %d", saved.step, saved.epoch + 1)
        return Position(saved.step, saved.epoch, saved.examples), None

    def save(self, at: Position, ramp: Ramp, accuracy: float | None, *, final: bool, wait: bool) -> None:
        """See Saver. Raises LossNotFinite for weights that are not finite: the loss of the last step does not show
        its update of the weights.
        """
        del ramp, accuracy  # The rate has no ramp, and the evaluator tests each checkpoint.
        self._pulse.beat()
        self._background.wait()
        copy = self._staged.copy(self._parameters.described())
        vectors = self._parameters.vectors() if copy is None else copy
        if not np.isfinite(vectors["trainable"]).all():
            raise LossNotFinite(f"not all weights are finite after step {at.step}: try a lower --lr")
        if final:
            self._pulse.stop()
            set_weights(self._network, vectors)
        self.state.epoch, self.state.examples, self.state.final = at.epoch, at.examples, final
        saved = replace(self.state)
        write = (
            functools.partial(write_arrays, arrays=in_memory(vectors)) if copy is None else self._staged.write
        )
        self._background.begin(lambda: state.save(saved, write))
        if wait or copy is None:
            self._background.wait()
        if not final:
            self._pulse.beat()

    def prepare_saves(self) -> None:
        """See Saver."""
        self._staged.prepare(self._parameters.described())

    @property
    def busy(self) -> bool:
        """See Saver."""
        return self._background.busy

    def close(self) -> None:
        """See Saver."""
        self._background.close()
        self._staged.close()

    def export(self, at: Position, accuracy: float | None) -> Mapping[str, object]:
        """See Saver."""
        del accuracy
        facts = {"steps": at.step, "epochs": at.epoch, "updates": self._options.updates}
        folder = Path(contract.root()) / contract.MODEL
        here = self.state
        saved_model.write(
            folder,
            self._network,
            name=here.model,
            shape=here.shape,
            classes=here.classes,
            facts=facts,
            class_names=self._class_names,
            orient=self._options.orient,
        )
        log.info("%d steps are done; the model is in %s", at.step, folder)
        return facts


def end_when_stalled(pulse: Pulse, cluster: Cluster, end: Callable[[str], NoReturn]) -> None:
    """Call `end` with the reason when no progress came within the limit although the servers and a worker answer.

    TensorFlow sometimes waits forever for a result of a lost worker; a new chief starts without the wait. While no
    worker answers, or a server is lost, the lack of progress is not a stall.
    """

    def watch() -> None:
        while True:
            time.sleep(STALL_SECONDS / 10)
            last, limit = pulse.at, pulse.limit
            if last is None or time.monotonic() - last < limit:
                continue
            lost = len(silent(cluster, "worker")) == cluster.workers or silent(cluster, "ps")
            if pulse.at != last:
                continue
            if lost:
                pulse.beat()
            else:
                end(f"no step has ended for {limit:.0f} s, though parameter servers and workers answer")

    threading.Thread(target=watch, name="end-when-stalled", daemon=True).start()
