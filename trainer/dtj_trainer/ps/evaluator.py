"""The evaluator: tests each new checkpoint in its workspace on the whole test set."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from dtj_trainer import contract, progress
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.keras import models
from dtj_trainer.ps import state
from dtj_trainer.ps.parameters import set_weights
from dtj_trainer.ps.worker_pictures import channels_last
from dtj_trainer.tensorboard import ScalarWriter
from dtj_trainer.train.metrics import MetricsFile

if TYPE_CHECKING:
    from dtj_trainer.data.pictures import Pictures, PictureSet
    from dtj_trainer.ps.options import Options

log = logging.getLogger(__name__)

BATCH = 500
POLL_SECONDS = 0.5


def run(options: Options, data: PictureSet, workers: int) -> None:
    """Test each new newest checkpoint; return after the training's last one.

    Raises NotOurCheckpoint for a checkpoint of another program.
    """
    pixels = channels_last(data.test)
    metrics = MetricsFile(workers)
    writer = ScalarWriter(
        Path(contract.root()) / contract.TENSORBOARD / "eval", rotate_seconds=options.tensorboard_seconds
    )
    model: keras.Model | None = None
    checkpoint = _Newest()
    final = False
    log.info("waiting for checkpoints to test on %d pictures", len(data.test))
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
        began = time.monotonic()
        loss, accuracy = test(model, pixels, data.test)
        rate = len(data.test) / max(time.monotonic() - began, 1e-9)
        progress.report(step=saved.step, loss=loss, accuracy=accuracy, final=saved.final)
        writer.add(saved.step, {"test/accuracy": accuracy, "test/loss": loss})
        metrics.add(
            "test",
            {
                "step": saved.step,
                "epoch": round(saved.epoch + saved.examples / saved.training_examples, 4),
                "loss": loss,
                "accuracy": accuracy,
                "examplesPerSecond": round(rate, 1),
                "final": saved.final,
            },
        )
        log.info("step %d: test accuracy %.4f, loss %.4f", saved.step, accuracy, loss)
    writer.close()
    progress.flush()
    log.info("that was the last checkpoint")


def test(model: keras.Model, pixels: np.ndarray, pictures: Pictures) -> tuple[float, float]:
    """Return mean loss and fraction of right answers; `pixels` are those of `pictures`, channels last."""
    loss = right = 0.0
    for start in range(0, len(pictures), BATCH):
        labels = tf.constant(pictures.labels[start : start + BATCH], tf.int32)
        logits = model.predict_on_batch(pixels[start : start + BATCH].astype(np.float32))
        loss += float(tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)))
        right += float(tf.reduce_sum(tf.cast(tf.argmax(logits, 1, tf.int32) == labels, tf.float32)))
    return loss / len(pictures), right / len(pictures)


class _Newest:
    """Returns each newest checkpoint once."""

    def __init__(self) -> None:
        self._read: tuple[int, int, int] | None = None
        self._given: tuple[int, bool] | None = None

    def another(self) -> tuple[state.State, dict[str, np.ndarray]] | None:
        """Return the newest checkpoint; None if it is the same as last time."""
        newest = checkpoints.newest()
        if newest is None:
            return None
        try:
            status = newest.path.stat()
            # Detect a replacement too: the last checkpoint may be of a step that was saved before.
            which = (newest.step, status.st_ino, status.st_mtime_ns)
            if which == self._read:
                return None  # Do not read the same checkpoint twice a second.
            saved, vectors = state.load(newest.path)
        except FileNotFoundError:
            return None  # The chief just pruned it, after a newer one.
        self._read = which
        if self._given == (saved.step, saved.final):
            return None
        self._given = saved.step, saved.final
        return saved, vectors
