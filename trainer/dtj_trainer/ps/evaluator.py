"""The evaluator: tests each new checkpoint in its workspace on the whole validation or test set."""

from __future__ import annotations

import logging
import operator
import time
from pathlib import Path
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from dtj_trainer import contract, progress
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.keras import models
from dtj_trainer.keras.losses import right_answers
from dtj_trainer.ps import state
from dtj_trainer.ps.parameters import set_weights
from dtj_trainer.ps.worker_pictures import read_batch
from dtj_trainer.tensorboard import ScalarWriter
from dtj_trainer.train.protocols import TOP, Tested
from dtj_trainer.train.report import MetricsFile

if TYPE_CHECKING:
    from dtj_trainer.data.examples import Examples
    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.ps.options import ServerOptions

log = logging.getLogger(__name__)

BATCH = 500
POLL_SECONDS = 0.5


def run(options: ServerOptions, data: PictureSet, workers: int) -> None:
    """Test each new newest checkpoint; return after the training's final checkpoint.

    If the data has a validation split, only the final checkpoint is tested on the test split.
    Raises NotOurCheckpoint for a checkpoint of another program.
    """
    metrics = MetricsFile(workers)
    writer = ScalarWriter(
        Path(contract.root()) / contract.TENSORBOARD / "eval", rotate_seconds=options.tensorboard_seconds
    )
    model: keras.Model | None = None
    checkpoint = _Newest()
    final = False
    of_each = {"test": data.test} if data.validation is None else {"validation": data.validation}
    for name, examples in of_each.items():
        log.info("waiting for checkpoints to test on %d pictures of the %s split", len(examples), name)
    while not final:
        found = checkpoint.another()
        if found is None:
            time.sleep(POLL_SECONDS)
            continue
        saved, vectors = found
        final = saved.final
        if model is None:
            model = models.build(saved.model, saved.shape, saved.classes, 0)
        set_weights(model, vectors)
        splits = of_each | {"test": data.test} if final else of_each
        for name, examples in splits.items():
            began = time.monotonic()
            sums, count = test(model, examples)
            loss, accuracy = sums.loss / count, sums.right / count
            rate = count / max(time.monotonic() - began, 1e-9)
            skipped = len(examples) - count
            writer.add(saved.step, {f"{name}/accuracy": accuracy, f"{name}/loss": loss})
            metrics.add(
                name,
                {
                    "step": saved.step,
                    "epoch": round(saved.epoch + saved.examples / saved.training_examples, 4),
                    "loss": loss,
                    "accuracy": accuracy,
                    "examplesPerSecond": round(rate, 1),
                    "final": saved.final,
                    **({"top5Accuracy": sums.top5 / count} if saved.classes > TOP else {}),
                    **({"skippedExamples": skipped} if skipped else {}),
                },
            )
            log.info("step %d: %s accuracy %.4f, loss %.4f", saved.step, name, accuracy, loss)
        # Report after all splits: the operator may end the evaluator once it has reported the last step.
        progress.report(step=saved.step, loss=loss, accuracy=accuracy, final=saved.final)
    writer.close()
    progress.flush()
    log.info("the last checkpoint of the training is tested")


def test(model: keras.Model, examples: Examples) -> tuple[Tested, int]:
    """Return the sums over the examples that could be read, and their number."""
    sums, count = Tested(), 0
    batches = [
        np.arange(start, min(start + BATCH, len(examples))) for start in range(0, len(examples), BATCH)
    ]
    examples.expect(iter(batches))
    for ids in batches:
        pixels, labels = read_batch(examples, ids)
        logits = model.predict_on_batch(pixels.astype(np.float32))
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        right, top5 = right_answers(tf.constant(labels), logits)
        sums = Tested(*map(operator.add, sums, map(float, (right, loss, top5))))
        count += len(labels)
    return sums, count


class _Newest:
    """Returns each newest checkpoint once."""

    def __init__(self) -> None:
        self._read: tuple[int, int, int] | None = None
        self._given: tuple[int, bool] | None = None

    def another(self) -> tuple[state.TrainingState, dict[str, np.ndarray]] | None:
        """Return the newest checkpoint; None if it is the same as last time."""
        newest = checkpoints.newest()
        if newest is None:
            return None
        try:
            status = newest.path.stat()
            # Compare the inode and the time too: the final checkpoint may replace an earlier one of the same step.
            which = (newest.step, status.st_ino, status.st_mtime_ns)
            if which == self._read:
                return None  # Do not read the same checkpoint twice a second.
            saved, vectors = state.load(newest.path)
        except FileNotFoundError:
            return None  # The chief has just removed this checkpoint, because there is a newer one.
        self._read = which
        if self._given == (saved.step, saved.final):
            return None
        self._given = saved.step, saved.final
        return saved, vectors
