"""Examples that workers leave out, and the evaluator of a set with a validation split, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dtj_trainer import progress
from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.data.stored_examples import SKIPPED
from dtj_trainer.train import loop
from dtj_trainer.train.batches import Batches
from dtj_trainer.train.protocols import Position, Ranks

tf = pytest.importorskip("tensorflow", reason="needs the tensorflow extra")

from dtj_trainer.keras import models  # noqa: E402
from dtj_trainer.ps import chief, evaluator, parameters, report, state, updates  # noqa: E402
from dtj_trainer.ps.options import parse  # noqa: E402
from dtj_trainer.ps.report import ServerTrainingReport  # noqa: E402
from dtj_trainer.ps.worker_pictures import Dealt, read_batch  # noqa: E402


class Here:
    """In place of TensorFlow's coordinator: a function that is scheduled runs at once, in this process."""

    def schedule(self, function: Any, args: tuple[Any, ...]) -> SimpleNamespace:
        result = tf.nest.map_structure(lambda tensor: tensor.numpy(), function(*args))
        return SimpleNamespace(fetch=lambda: result)

    def join(self) -> None:
        pass


def grey(labels: list[int]) -> Pictures:
    pixels = np.random.default_rng(1).integers(0, 256, (len(labels), 1, 8, 8)).astype(np.uint8)
    return Pictures(pixels, np.array(labels))


@pytest.mark.parametrize("kind", [updates.Asynchronous, updates.Synchronous])
def test_examples_that_workers_leave_out_are_counted(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    for module in (parameters, parameters):
        monkeypatch.setattr(module, "ps_device", lambda _: "/device:CPU:0")
    pictures = grey([0, 1, SKIPPED, 2, 0, SKIPPED, 1, 2])

    def read_here(packed: tf.Tensor, shape: tuple[int, int, int]) -> list[tf.Tensor]:
        def read(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.int32]:
            return (*read_batch(pictures, Dealt.unpacked(numbers).ids), np.int32(0))

        numbers = tf.io.decode_raw(packed, tf.int64)
        pixels, labels, worker = tf.numpy_function(read, [numbers], [tf.uint8, tf.int32, tf.int32])
        return [
            tf.ensure_shape(pixels, [None, *shape]),
            tf.ensure_shape(labels, [None]),
            tf.ensure_shape(worker, []),
        ]

    monkeypatch.setattr(updates, "read_here", read_here)
    network = models.build("cnn", (8, 8, 1), 3, 1)
    held = parameters.Parameters(network, parse(["--model=cnn"], "program", "what it is"), 1)
    made = kind(Here(), updates.WorkerStep(network, held, (8, 8, 1)), held, workers=2)
    whole, rest = (Dealt(np.array(ids), np.array([0])) for ids in (range(8), (0, 1, 3, 4)))
    results = [*made.submit(whole), *made.submit(rest), *made.drain()]
    assert [(each.examples, each.skipped) for each in results] == [(6, 2), (4, 0)]


def test_the_evaluator_tests_the_last_checkpoint_alone_on_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    network = models.build("cnn", (8, 8, 1), 3, 1)
    told: list[tuple[int, float, bool]] = []
    monkeypatch.setattr(
        progress, "report", lambda step, loss, accuracy, final: told.append((step, accuracy, final))
    )
    weights = {
        name: np.concatenate([np.asarray(each).reshape(-1) for each in variables] or [np.zeros(0)])
        for name, variables in (
            ("trainable", network.trainable_variables), ("other", network.non_trainable_weights)
        )
    }  # fmt: skip
    saved = [
        state.TrainingState("cnn", (8, 8, 1), 3, "sgd", 1004, step=step, final=final)
        for step, final in ((5, False), (9, True))
    ]
    coming = iter([(each, weights) for each in saved])
    monkeypatch.setattr(evaluator._Newest, "another", lambda _: next(coming))
    test, validation = grey([0, 1, 2, SKIPPED]), grey([0, 1, 2, 0, 1])
    evaluator.run(parse([], "program", ""), PictureSet(test, test, 3, validation=validation), 2)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["step"], line["final"], line.get("skippedExamples")) for line in lines] == [
        ("validation", 5, False, None), ("validation", 9, True, None), ("test", 9, True, 1)
    ]  # fmt: skip
    assert told == [(5, lines[0]["accuracy"], False), (9, lines[2]["accuracy"], True)]


class Late:
    """In place of updates: a step ends when the next but one has begun."""

    def __init__(self) -> None:
        self.running: list[Dealt] = []
        self.applied = 0

    def submit(self, dealt: Dealt) -> list[updates.StepResult]:
        self.running.append(dealt)
        return self._take(2)

    def drain(self) -> list[updates.StepResult]:
        return self._take(0)

    def numpy(self) -> int:
        """The step on the server."""
        return self.applied

    def _take(self, left: int) -> list[updates.StepResult]:
        ended = []
        while len(self.running) > left:
            ids = self.running.pop(0).ids
            self.applied += 1
            counts = float(ids.sum()), float((ids % 2).sum()), len(ids)
            times = [report.BatchTimes(0, 0.001, 0.001, 0.001)]
            ended.append(updates.StepResult(*counts, times, top5=float((ids < 6).sum())))
        return ended


def test_each_epoch_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    options = parse(["--epochs=2", "--lr=0.1", "--warmup-epochs=2", "--warmup-start=0.02"], "program", "")
    sharding, late = Sharding(10, 4, rank=0, ranks=1, seed=1), Late()
    here = state.TrainingState("cnn", (8, 8, 1), 10, "sgd", 10)
    cluster: Any = SimpleNamespace(workers=2, ps=1)
    reported = ServerTrainingReport(options, cluster, here)
    servers: Any = SimpleNamespace(step=late)
    model = chief.ChiefModel(late, servers, here, reported, chief.Pulse())  # type: ignore[arg-type]
    saver: Any = SimpleNamespace(
        busy=True, prepare_saves=dict, save=lambda *_, **__: None, close=dict, export=lambda *_: {}
    )
    stop: Any = SimpleNamespace(requested=False, ends=lambda _: None)
    monkeypatch.setattr(loop, "end_when_stopped", lambda *_: None)
    batches = Batches(sharding, chief._dealer(sharding))
    loop.Training(
        options, batches, model, Ranks(), saver, Position(), None, stop, reported, meeting_seconds=0
    ).run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["kind"] == "epoch"]
    assert [(line["step"], line["epoch"], line["epochExamples"]) for line in found] == [
        (3, 1, 10),
        (6, 2, 10),
    ]
    means = {(line["loss"], line["accuracy"], line["top5Accuracy"]) for line in found}
    assert means == {(4.5, 0.5, 0.6)}
    assert [line["learningRate"] for line in found] == pytest.approx([0.052, 0.092])
    assert lines[1]["kind"] == "train"
    assert lines[1]["learningRate"] > 0.02


@pytest.mark.parametrize("name", ["regularized", "active", "added"])
def test_a_networks_own_losses_are_in_its_gradient(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in (parameters, parameters):
        monkeypatch.setattr(module, "ps_device", lambda _: "/device:CPU:0")
    pictures = grey([0, 1, 2, 0])
    pixels = tf.constant(pictures.pixels.transpose(0, 2, 3, 1), tf.float32)

    def gradient(factory: str) -> tuple[np.ndarray, np.ndarray]:
        model = f"tests.trainer.regularized_keras:{factory}"
        network = models.build(model, (8, 8, 1), 3, 1)
        held = parameters.Parameters(network, parse([f"--model={model}"], "program", "what it is"), 1)
        step = updates.WorkerStep(network, held, (8, 8, 1))
        labels = tf.constant(pictures.labels, tf.int32)
        done = step.forward(
            held.trainable.read(), held.read_other(), pixels, labels, tf.constant(1, tf.int64)
        )
        (kernel,) = network.trainable_variables
        return done.gradient.numpy()[: kernel.numpy().size].reshape(kernel.shape), kernel.numpy()

    plain, weight = gradient("plain")
    values = pixels.numpy().reshape(4, 64) / 127.5 - 1
    # The gradient is that of a sum over 4 examples, which the servers divide by their number.
    wanted = 20 * weight * 4 if name == "regularized" else 2 * values.T @ (values @ weight)
    np.testing.assert_allclose(gradient(name)[0] - plain, wanted, rtol=1e-3, atol=1e-3)
