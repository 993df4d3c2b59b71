"""The chief: hands out the work, keeps the results, and is the only one that writes."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import tensorflow as tf

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.models import keras_pictures
from dtj_trainer.programs import keras_saved_model
from dtj_trainer.programs.parameter_server import state, worker_pictures
from dtj_trainer.programs.parameter_server.cluster import silent
from dtj_trainer.programs.parameter_server.parameters import Parameters, set_weights
from dtj_trainer.programs.parameter_server.report import Report
from dtj_trainer.programs.parameter_server.state import State
from dtj_trainer.programs.parameter_server.updates import Asynchronous, Synchronous, Updates, WorkerStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtj_trainer.programs.parameter_server.cluster import Cluster
    from dtj_trainer.programs.parameter_server.options import Options
    from dtj_trainer.programs.parameter_server.updates import StepResult
    from dtj_trainer.programs.stop import StopRequest

log = logging.getLogger(__name__)

STALL_SECONDS = 120.0
"""Without the end of a step, after the first: longer than most steps take, also one that is compiled anew."""
STALL_STEPS = 10
"""As many times the longest step so far, where that is more."""
FIRST_STALL_SECONDS = 600.0
"""To make the variables, and to the end of the first step: nothing tells yet how long a step takes."""


class Stopped(Exception):
    """SIGTERM came; a checkpoint of this step is saved."""


class LossNotFinite(Exception):
    """The training has diverged."""


class Pulse:
    """When the training last went on, by time.monotonic, and how many seconds it may take to go on again.

    `at` is None when nothing is waited for any more.
    """

    def __init__(self) -> None:
        self.at: float | None = time.monotonic()
        self.limit = FIRST_STALL_SECONDS
        self._longest = 0.0

    def beat(self) -> None:
        """It goes on."""
        self.at = time.monotonic()

    def step_ended(self, seconds: float) -> None:
        """A step has ended that took a worker so long."""
        self.beat()  # first: the limit may become less
        self._longest = max(self._longest, seconds)
        self.limit = max(STALL_SECONDS, STALL_STEPS * self._longest)

    def stop(self) -> None:
        """From now on it may take any time."""
        self.at = None


class Training:
    """One run of the chief on servers that answer. Makes the model and its variables, goes on from a checkpoint."""

    def __init__(self, options: Options, cluster: Cluster, stop: StopRequest, pulse: Pulse) -> None:
        self._options = options
        self._stop = stop
        self._pulse = pulse
        # Not a few errors of a lost worker name a server that waited for it. The coordinator passes over as many
        # as this in all, and then takes the server for lost; when it is, they come within a second.
        os.environ.setdefault("TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES", "20")
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        facts = worker_pictures.facts(coordinator)
        self._model = keras_pictures.build(options.model, facts.shape, facts.classes, options.seed)
        self._state = State(
            options.model, facts.shape, facts.classes, options.optimizer, training_examples=facts.examples
        )
        self._parameters = Parameters(self._model, options, cluster.ps)
        self._resume()
        self._report = Report(options, cluster, self._state)
        self._updates = self._make_updates(coordinator, cluster, facts.shape)
        self._sharding = Sharding(
            facts.examples, options.batch_size * self._updates.shards, rank=0, ranks=1, seed=options.seed
        )
        self._begun = self._state.step
        self._counted_at: float | None = None
        self._total = self._total_steps()

    def run(self) -> None:
        """Train to the end and write the model. Raises Stopped, LossNotFinite, or what TensorFlow raises."""
        self._saved_at = time.monotonic()
        self._pulse.beat()
        self._report.begin(self._state, self._total)
        try:
            while not self._done():
                self._train_epoch()
            self._finish()
        finally:
            self._report.close()

    # --- the loop -------------------------------------------------------------------------------

    def _train_epoch(self) -> None:
        """Train to the end of the epoch, or of the run; saves on the way and at the end."""
        here = self._state
        for share in self._sharding.epoch(here.epoch, here.examples):
            self._take(self._updates.submit(share.indices))
            self._begun += 1
            here.examples = share.position
            here.trained += len(share.indices)
            if here.examples >= here.training_examples or self._steps_done():
                break
            if self._stop.requested or self._save_is_due():
                self._pause()
                if self._steps_done():  # with batches that were applied twice
                    break
                self._save_and_stop_if_asked()
        self._pause()
        self._report.end_of_epoch(here, self._total)
        if here.examples >= here.training_examples:
            here.epoch, here.examples = here.epoch + 1, 0
        if not self._done():
            self._save_and_stop_if_asked()

    def _pause(self) -> None:
        """Let the steps that are under way end, so that variables, step and position belong together."""
        self._take(self._updates.drain())
        counted = int(self._parameters.step.numpy())
        if counted != self._state.step:
            log.info(
                "step %d: %d batches were applied twice when a worker was lost",
                counted,
                counted - self._state.step,
            )
        self._state.step = self._begun = counted
        self._total = self._total_steps()
        self._count_time()

    def _take(self, results: list[StepResult]) -> None:
        for result in results:
            self._state.step += 1
            self._pulse.step_ended(max(times.total for times in result.times))
            if not math.isfinite(result.loss):
                raise LossNotFinite(f"the loss is {result.loss} at step {self._state.step}: try a lower --lr")
            self._count_time()
            self._report.add(result, self._state, self._total)

    def _finish(self) -> None:
        self._pulse.beat()
        vectors = self._vectors()
        self._pulse.stop()
        set_weights(self._model, vectors)
        self._state.final = True
        state.save(self._state, vectors)
        facts = {"steps": self._state.step, "epochs": self._state.epoch, "updates": self._options.updates}
        folder = Path(contract.root()) / contract.MODEL
        keras_saved_model.write(
            folder,
            self._model,
            name=self._state.model,
            shape=self._state.shape,
            classes=self._state.classes,
            facts=facts,
        )
        self._report.end(self._state)
        log.info("%d steps are done; the model is in %s", self._state.step, folder)

    # --- how far --------------------------------------------------------------------------------

    def _done(self) -> bool:
        return self._state.epoch >= self._options.epochs or self._steps_done()

    def _steps_done(self) -> bool:
        limit = self._options.max_steps
        return limit is not None and self._begun >= limit

    def _total_steps(self) -> int:
        here = self._state
        if self._done():
            return here.step
        later = (self._options.epochs - here.epoch - 1) * self._sharding.steps()
        total = here.step + self._sharding.steps(here.examples) + later
        return min(total, self._options.max_steps or total)

    def _count_time(self) -> None:
        """Add up the seconds, from the end of the first step on: before it TensorFlow compiles."""
        now = time.monotonic()
        if self._counted_at is not None:
            self._state.seconds += now - self._counted_at
        self._counted_at = now

    # --- checkpoints ----------------------------------------------------------------------------

    def _save_is_due(self) -> bool:
        every = self._options.checkpoint_steps
        if every is not None and self._begun % every == 0:
            return True
        return time.monotonic() - self._saved_at >= self._options.checkpoint_seconds

    def _save_and_stop_if_asked(self) -> None:
        self._pulse.beat()
        state.save(self._state, self._vectors())
        self._pulse.beat()
        self._saved_at = time.monotonic()
        if self._stop.requested:
            raise Stopped(f"stopped at step {self._state.step}, with a checkpoint")

    def _vectors(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps. Raises LossNotFinite: a step's loss is of the variables before its update."""
        vectors = self._parameters.vectors()
        if not np.isfinite(vectors["trainable"]).all():
            raise LossNotFinite(f"not all weights are finite after step {self._state.step}: try a lower --lr")
        return vectors

    def _resume(self) -> None:
        newest = checkpoints.newest()
        if newest is None:
            return
        saved, vectors = state.load(newest.path)
        state.check(saved, self._state, newest.path)
        self._parameters.restore(vectors)
        self._state = replace(saved, training_examples=self._state.training_examples, final=False)
        log.info("going on from the checkpoint of step %d, epoch %d", saved.step, saved.epoch + 1)

    def _make_updates(self, coordinator: Any, cluster: Cluster, shape: tuple[int, int, int]) -> Updates:
        iterator = iter(coordinator.create_per_worker_dataset(worker_pictures.dataset))
        step = WorkerStep(self._model, self._parameters, shape)
        kind = Synchronous if self._options.updates == "Synchronous" else Asynchronous
        return kind(coordinator, iterator, step, self._parameters, workers=cluster.workers)


def end_when_stalled(pulse: Pulse, cluster: Cluster, end: Callable[[str], NoReturn]) -> None:
    """Call `end` with what happened when there is no pulse for its limit although servers and a worker answer.

    TensorFlow now and then waits for ever for something of a lost worker; another chief doesn't. While nobody
    answers who could compute, or a server is lost, there is nothing to call a stall.
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
