"""Optimizers, label smoothing and own networks of the Keras programs, beside PyTorch's."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from torch.nn import functional

from dtj_trainer import progress
from dtj_trainer.keras import models, optimizers, saved_model
from dtj_trainer.keras.losses import cross_entropies
from dtj_trainer.torch import model
from dtj_trainer.train.options import OPTIMIZERS, TrainingOptions, parse

pytestmark = pytest.mark.torch


def options(*given: str) -> TrainingOptions:
    return parse(["--data=none", *given], "program", "", models.MODELS, mixed_precision=False)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_those_of_pytorch(name: str) -> None:
    chosen = options(f"--optimizer={name}", "--lr=0.1", "--weight-decay=0.01")
    start = np.array([0.5, -1.0, 2.0], np.float32)
    theirs = torch.nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(start))
    their_optimizer = model.make_optimizer(chosen, theirs)
    ours = keras.Variable(start)
    our_optimizer = optimizers.make_optimizer(chosen)
    penalty = 0 if name == "adamw" else 0.01
    for gradient in ([0.1, -0.2, 0.3], [0.4, 0.5, -0.6], [-0.7, 0.8, 0.9]):
        theirs.weight.grad = torch.tensor([gradient])
        their_optimizer.step()
        our_optimizer.apply([tf.constant(gradient) + penalty * ours.value], [ours])
    np.testing.assert_allclose(ours.numpy(), theirs.weight.detach().numpy()[0], rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_label_smoothing_is_that_of_pytorch(smoothing: float) -> None:
    logits, labels = np.random.default_rng(1).normal(size=(5, 4)), np.array([0, 1, 2, 3, 0])
    ours = cross_entropies(tf.constant(labels), tf.constant(logits), smoothing)
    theirs = functional.cross_entropy(
        torch.from_numpy(logits), torch.from_numpy(labels), reduction="none", label_smoothing=smoothing
    )
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9)


def test_a_network_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keras_nets.py").write_text(
        "import keras\n\n"
        "def net(channels, classes):\n"
        "    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(classes)])\n\n"
        "def number(channels, classes):\n"
        "    return classes\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = models.build("keras_nets:net", (4, 5, 3), 7, 1)
    assert model(np.zeros((2, 4, 5, 3), np.float32)).shape == (2, 7)
    with pytest.raises(ValueError, match="--model=keras_nets:number returned int, and has to return a keras"):
        models.build("keras_nets:number", (4, 5, 3), 7, 1)


class Unsavable(keras.layers.Layer):
    """Its argument is in no configuration."""

    def __init__(self, about: object) -> None:
        super().__init__()
        self.about = about

    def call(self, values: tf.Tensor) -> tf.Tensor:
        return values * 2


def test_a_network_that_keras_cannot_save_leaves_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(progress, "exported", told.append)
    network = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), Unsavable(object()), keras.layers.Dense(3)]
    )
    saved_model.write(tmp_path, network, name="own", shape=(8, 8, 1), classes=3, facts={"steps": 7})
    described = json.loads((tmp_path / "model.json").read_text())
    assert described["export"]["error"].startswith("Keras refused the model (weights.npz has the weights): ")
    assert (described["steps"], told) == (7, [described["export"]["error"]])
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", "model.json", "weights.npz"}
    with np.load(tmp_path / "weights.npz", allow_pickle=False) as arrays:
        for variable in network.weights:
            np.testing.assert_array_equal(arrays[variable.path], variable.numpy())
