"""Runs global steps on the available workers: asynchronously, or synchronously with an exact result."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from dtj_trainer.keras.losses import cross_entropies, right_answers
from dtj_trainer.keras.seeds import state_of
from dtj_trainer.ps.report import BatchTimes
from dtj_trainer.ps.worker_pictures import Dealt, chance_of, rate_of, read_here

if TYPE_CHECKING:
    import keras

    from dtj_trainer.ps.parameters import Parameters

log = logging.getLogger(__name__)

AHEAD = 4
"""Batches scheduled ahead for each worker, so that no worker waits for the chief."""


_POLL_SECONDS = 0.002
_HOST = "/device:CPU:0"
"""Within a function on a worker: that worker's CPU."""


class StepResult(NamedTuple):
    """The result of a global step. `loss`, `right` and `top5` are sums over its `examples`; `times` has each batch.

    `top5` counts the examples whose label is among the five best answers. `skipped` counts the examples of the step
    that the workers left out because they can't be read.
    """

    loss: float
    right: float
    examples: int
    times: list[BatchTimes]
    skipped: int = 0
    top5: float = 0.0


class Updates(Protocol):
    """A way to update the variables."""

    shards: int
    """The number of worker batches in a global step."""

    def submit(self, dealt: Dealt) -> list[StepResult]:
        """Begin a global step on these examples; return the steps that have ended meanwhile."""

    def drain(self) -> list[StepResult]:
        """Wait until every step has ended; return the steps not returned before."""


class Forward(NamedTuple):
    """The result of a forward pass: `counts` are sums, those of StepResult; `gradient` is that of the sum of losses.

    The loss comes first, then right answers, then those among the best five, all float64.
    """

    counts: tf.Tensor
    gradient: tf.Tensor
    other: tf.Tensor


class Computed(NamedTuple):
    """A batch that a worker has computed: worker, global step, and times by the worker's clock."""

    worker: tf.Tensor
    number: tf.Tensor
    examples: tf.Tensor
    done: Forward
    begun: tf.Tensor
    read: tf.Tensor


class WorkerStep:
    """A worker's computation, as parts of a function that runs on the worker. Times are by the worker's clock."""

    def __init__(
        self,
        model: keras.Model,
        parameters: Parameters,
        shape: tuple[int, int, int],
        smoothing: float = 0.0,
    ) -> None:
        self._model, self._smoothing = model, smoothing
        self._weights = {id(each) for each in model.weights}
        self._parameters = parameters
        self._shape = shape

    def read(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Read trained variables, other variables, and the global step from the servers."""
        return (
            self._parameters.trainable.read(),
            self._parameters.read_other(),
            self._parameters.step.read_value(),
        )

    def forward(
        self, trainable: tf.Tensor, other: tf.Tensor, pixels: tf.Tensor, labels: tf.Tensor, chance: tf.Tensor
    ) -> Forward:
        """Compute the model's loss on a batch and its gradient. `chance`: see `Dealt`."""
        weights = self._parameters.trainable_layout.split(trainable)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, after, own = self._model.stateless_call(
                weights, self._untrained(other, chance), pixels, training=True, return_losses=True
            )
            loss = tf.reduce_sum(cross_entropies(labels, logits, self._smoothing))
            # The network's own losses are means over the examples, or depend on weights alone. Reports leave them
            # out.
            wanted = loss + tf.add_n(own) * tf.cast(tf.shape(labels)[0], tf.float32) if own else loss
        gradients = tape.gradient(wanted, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradient = self._parameters.trainable_layout.join(gradients)
        with tf.device(_HOST):  # Copy to the CPU, so that the measured time includes the GPU's work.
            gradient = tf.identity(gradient)
        counts = tf.stack([tf.cast(each, tf.float64) for each in (loss, *right_answers(labels, logits))])
        kept = [
            value
            for variable, value in zip(self._model.non_trainable_variables, after, strict=True)
            if id(variable) in self._weights
        ]
        return Forward(counts, gradient, self._parameters.other_layout.join(kept))

    def _untrained(self, other: tf.Tensor, chance: tf.Tensor) -> list[tf.Tensor]:
        """Return the values of the model's variables that are not trained: weights, and states of generators."""
        weights = iter(self._parameters.other_layout.split(other))
        values = list[tf.Tensor]()
        for variable in self._model.non_trainable_variables:
            value = next(weights) if id(variable) in self._weights else state_of(chance, len(values))
            if not variable.dtype.startswith("float"):
                # Whole numbers were averaged over workers as floats: undo the rounding errors.
                value = tf.cast(tf.round(value), variable.dtype)
            values.append(value)
        return values

    def compute(self, packed: tf.Tensor) -> Computed:
        """Read the variables, read the batch of `Dealt.packed`, and run the forward pass."""
        begun = tf.timestamp()
        with tf.control_dependencies([begun]):
            trainable, other, number = self.read()
        read = _now_after(trainable, other, number)
        with tf.control_dependencies([read]):
            pixels, labels, worker = self.batch(packed)
        done = self.forward(trainable, other, pixels, labels, chance_of(packed))
        return Computed(worker, number, tf.shape(labels)[0], done, begun, read)

    def batch(self, packed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return pixels and labels of `Dealt.packed`, and the number of the worker that read them."""
        with tf.device(_HOST):  # Read on the CPU: only the pixels go to a GPU, as bytes.
            pixels, labels, worker = read_here(packed, self._shape)
        return tf.cast(pixels, tf.float32), labels, worker


def shares(indices: np.ndarray, workers: int) -> list[np.ndarray]:
    """Divide a global batch evenly into one part for each worker; fewer parts if there are fewer examples."""
    return [part for part in np.array_split(indices, workers) if len(part)]


def _as_bytes(dealt: Dealt) -> tf.Tensor:
    """Pack `dealt` into a scalar. A tensor of another shape for each batch would compile the function anew."""
    return tf.constant(dealt.packed())


def wait_until_arrived(coordinator: Any, scheduled: Any) -> None:
    """Wait until the chief has the results of a scheduled function. Raises the error of a failed step.

    `fetch` must not be called earlier: it takes part in copying the results. If the worker is lost meanwhile, the
    caller of `fetch` gets the error, or waits forever, instead of the coordinator, which would compute the results
    again.

    TensorFlow has no public API for this. In a release without the private attribute, the function waits for all
    scheduled functions by the public `join`, which leaves workers idle at times.
    """
    if not reports_arrival(scheduled):
        coordinator.join()
        return
    while not scheduled._has_fetched_to_local:  # noqa: SLF001
        coordinator.done()
        time.sleep(_POLL_SECONDS)


def reports_arrival(scheduled: Any) -> bool:
    """Return whether this release of TensorFlow reports when a scheduled function's results have arrived."""
    return hasattr(scheduled, "_has_fetched_to_local")


def _now_after(*values: Any) -> tf.Tensor:
    with tf.control_dependencies(list(values)):
        return tf.timestamp()


def _count(parameters: Parameters) -> Any:
    """Increment the global step on its server. No increment is lost when several workers do so at once."""
    return tf.raw_ops.AssignAddVariableOp(resource=parameters.step.handle, value=tf.constant(1, tf.int64))


class Asynchronous:
    """Each batch is a global step: the worker that computed the batch updates the variables at once.

    Another worker, or the same one after its return, repeats the batch of a lost worker. If the lost worker had
    already updated the variables, the batch is applied twice, and the global step counts both.
    """

    shards = 1

    def __init__(
        self,
        coordinator: Any,
        step: WorkerStep,
        parameters: Parameters,
        *,
        workers: int,
    ) -> None:
        self._coordinator = coordinator
        self._ahead = AHEAD * workers
        self._running: deque[tuple[Any, int]] = deque()
        self._function = _asynchronous_function(step, parameters)

    def submit(self, dealt: Dealt) -> list[StepResult]:
        """See Updates."""
        scheduled = self._coordinator.schedule(self._function, args=(_as_bytes(dealt),))
        if not self._running and not reports_arrival(scheduled):
            log.warning(
                "TensorFlow %s does not report when results have arrived, so workers are idle at times",
                tf.__version__,
            )
        self._running.append((scheduled, len(dealt.ids)))
        return self._take(self._ahead)

    def drain(self) -> list[StepResult]:
        """See Updates."""
        return self._take(0)

    def _take(self, left: int) -> list[StepResult]:
        ended = []
        while len(self._running) > left:
            scheduled, given = self._running.popleft()
            wait_until_arrived(self._coordinator, scheduled)
            worker, loss, right, top5, examples, read, compute, push = scheduled.fetch().tolist()
            times = [BatchTimes(int(worker), read, compute, push)]
            skipped = given - int(examples)
            ended.append(StepResult(loss, right, int(examples), times, skipped, top5))
        return ended


def _asynchronous_function(step: WorkerStep, parameters: Parameters) -> Any:
    def run(packed: tf.Tensor) -> tf.Tensor:
        worker, number, examples, done, begun, read = step.compute(packed)
        gradient = done.gradient / tf.cast(examples, tf.float32)
        computed = _now_after(gradient, done.other, done.counts)
        with tf.control_dependencies([computed]):
            applied = parameters.optimizer.apply(tf.identity(gradient), number, rate_of(packed))
            applied += parameters.assign_other(tf.identity(done.other))
        with tf.control_dependencies(applied):
            counted = _count(parameters)
        pushed = _now_after(counted)
        return tf.stack(
            [
                tf.cast(worker, tf.float64),
                *tf.unstack(done.counts),
                tf.cast(examples, tf.float64),
                read - begun,
                computed - read,
                pushed - computed,
            ]
        )

    return tf.function(run, autograph=False)


class Synchronous:
    """A global step is a batch of every worker, with the same result as one process on all these examples.

    Workers send their gradients to the chief, which adds them up in a fixed order and applies the sum once. A
    gradient depends only on variables and examples: another worker, or the same one after its return, repeats the
    part of a lost worker, and the part counts once.
    """

    def __init__(
        self,
        coordinator: Any,
        step: WorkerStep,
        parameters: Parameters,
        *,
        workers: int,
    ) -> None:
        self.shards = workers
        self._coordinator = coordinator
        self._parameters = parameters
        self._function = _gradient_function(step)
        self._apply = _apply_function(parameters)

    def submit(self, dealt: Dealt) -> list[StepResult]:
        """See Updates."""
        indices = dealt.ids
        parts = shares(indices, self.shards)
        packed = [  # Each part gets random bits of its own.
            _as_bytes(dealt._replace(ids=part, chance=(dealt.chance + (number << 32)) % 2**64))
            for number, part in enumerate(parts)
        ]
        scheduled = [self._coordinator.schedule(self._function, args=(each,)) for each in packed]
        self._coordinator.join()  # Returns when all results have arrived; see wait_until_arrived.
        found = [part.fetch() for part in scheduled]
        gradient = sum(gradient for _, gradient, _ in found) / len(indices)
        other = sum(other * len(part) for part, (_, _, other) in zip(parts, found, strict=True)) / len(
            indices
        )
        began = time.monotonic()
        rate = tf.constant(dealt.rate, tf.float32)
        self._apply(tf.constant(gradient, tf.float32), tf.constant(other, tf.float32), rate)
        applied = time.monotonic() - began
        numbers = [numbers.tolist() for numbers, _, _ in found]
        loss, right, top5, examples = (
            sum(each) for each in zip(*(each[1:5] for each in numbers), strict=True)
        )
        return [
            StepResult(
                loss,
                right,
                int(examples),
                [BatchTimes(int(worker), read, compute, applied) for worker, *_, read, compute in numbers],
                len(indices) - int(examples),
                top5,
            )
        ]

    def drain(self) -> list[StepResult]:
        """See Updates. No step is ever left running."""
        return []


def _gradient_function(step: WorkerStep) -> Any:
    def run(packed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        worker, _, examples, done, begun, read = step.compute(packed)
        computed = _now_after(done.gradient, done.other, done.counts)
        numbers = [
            tf.cast(worker, tf.float64),
            *tf.unstack(done.counts),
            tf.cast(examples, tf.float64),
            read - begun,
            computed - read,
        ]
        return tf.stack(numbers), done.gradient, done.other

    return tf.function(run, autograph=False)


def _apply_function(parameters: Parameters) -> Any:
    def run(gradient: tf.Tensor, other: tf.Tensor, rate: tf.Tensor) -> None:
        applied = parameters.optimizer.apply(gradient, parameters.step.read_value(), rate)
        applied += parameters.assign_other(other)
        with tf.control_dependencies(applied):
            _count(parameters)

    return tf.function(run, autograph=False)
