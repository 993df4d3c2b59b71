"""A training on two ranks, then three, then one, beside one process: the same losses, examples and pixels.

The ranks are threads of this process, with the real loop, loader, model and checkpoints. The same on a cluster:
tests/cluster/test_exactly_once.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.idx_files import write_pictures
from tests.trainer.thread_ranks import Stop, ThreadRanks, Together
from torch import Tensor, nn

from dtj_trainer import progress
from dtj_trainer.data.pictures import Pictures, PictureSet, load_pictures
from dtj_trainer.data.sharding import Share
from dtj_trainer.torch.model import TorchModel, TorchSaver
from dtj_trainer.torch.ranks import GradientAveraging, TensorRanks
from dtj_trainer.train import loop as training
from dtj_trainer.train import picture_training
from dtj_trainer.train.options import parse

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
EXAMPLES = 1004
"""With 48 examples a step, an epoch has 20 steps and a last one of 44: no world stops at the end of an epoch."""
STEPS = 60


class Averaging(GradientAveraging):
    """See GradientAveraging: of threads."""

    def __init__(self, network: nn.Module, optimizer: Any, ranks: Threads) -> None:
        super().__init__(network, optimizer)
        self._ranks = ranks

    @contextmanager
    def averaged(self) -> Iterator[None]:
        parameters = [each for each in self.network.parameters() if each.grad is not None]
        gradients = [each.grad.clone() for each in parameters]  # type: ignore[union-attr]
        everyone = self._ranks.exchange("gradients", gradients)
        for parameter, *of_ranks in zip(parameters, *everyone, strict=True):
            parameter.grad = torch.stack(of_ranks).mean(0)
        yield


class Threads(ThreadRanks, TensorRanks):
    """See TensorRanks: threads of this process."""

    def averaging(
        self, network: nn.Module, optimizer: Any, passes: int, *, every_weight: bool = True
    ) -> GradientAveraging:
        return Averaging(network, optimizer, self)

    def average(self, tensor: Tensor, name: str) -> Tensor:
        return torch.stack(self.exchange(name, tensor)).mean(0)

    def first(self, tensor: Tensor, name: str) -> Tensor:
        return self.exchange(name, tensor.clone())[0]  # type: ignore[no-any-return]

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        first = self.exchange("state", {name: tensor.clone() for name, tensor in tensors.items()})[0]
        for name, tensor in tensors.items():
            tensor.copy_(first[name])


class Witness(TorchModel):
    """A model that keeps the pixels of each example that it trained with, by step and label."""

    seen: dict[int, dict[int, np.ndarray]]

    def train(self, data: tuple[Tensor, Tensor], share: Share, rate: float, step: int) -> None:
        here = self.seen.setdefault(step, {})
        for id_, pixels in zip(share.indices[: share.count].tolist(), data[0].numpy(), strict=False):
            assert here.setdefault(id_, pixels) is pixels, "an example came twice in a step"
        super().train(data, share, rate, step)


def train(root: Path, data: PictureSet, ranks: int, *options: str) -> dict[int, dict[int, np.ndarray]]:
    """Train on threads; return the pixels of each example, by step."""
    together = Together(ranks)
    fixed = (
        "--data=none",
        "--no-export",
        "--global-batch-size=48",
        "--log-steps=1",
        "--log-seconds=1000",
        "--lr=0.02",
    )
    chosen = parse(
        [*fixed, "--epochs=9", "--schedule=constant", *options], "program", "", ("cnn", "resnet18")
    )
    seen: dict[int, dict[int, np.ndarray]] = {}
    one_generator = threading.Lock()  # It is seeded for the first weights.

    def run(rank: int) -> None:
        there = Threads(together, rank)
        try:
            with one_generator:
                model = Witness(chosen, data, CPU, there)
            model.seen = seen
            picture_training.train(chosen, data, model, there, TorchSaver(chosen, data, model, there))
        except BaseException:
            together.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        for each in [pool.submit(run, rank) for rank in range(ranks)]:
            each.result()
    return seen


def losses(root: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["kind"] == "train"}


@pytest.mark.parametrize("augment", [(), ("--augment", "--data-workers=2")], ids=["plain", "augmented"])
def test_two_ranks_then_three_then_one_are_one_process(
    augment: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DTJ_ARTIFACTS_URI", raising=False)
    monkeypatch.setattr(picture_training, "StopRequest", Stop)
    monkeypatch.setattr(training, "end_when_stopped", lambda *_: None)
    monkeypatch.setattr(progress, "report", lambda **_: None)
    read = load_pictures(str(write_pictures(tmp_path / "data", EXAMPLES, 51)))
    chance = np.random.default_rng(1)  # Labels by chance keep losses and gradients large.
    labels = np.where(
        chance.random(EXAMPLES) < 0.5, chance.integers(0, 10, EXAMPLES), np.arange(EXAMPLES) % 10
    )
    data = replace(read, train=Pictures(read.train.read(np.arange(EXAMPLES)).pixels, labels))
    straight, changing = tmp_path / "straight", tmp_path / "changing"
    seen: dict[int, dict[int, np.ndarray]] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        monkeypatch.setenv("DTJ_ROOT", str(straight))
        alone = train(straight, data, 1, f"--max-steps={STEPS}", *augment)
        monkeypatch.setenv("DTJ_ROOT", str(changing))
        for ranks, last in ((2, 17), (3, 38), (1, STEPS)):
            seen |= train(changing, data, ranks, f"--max-steps={last}", *augment)
    finally:
        torch.set_num_threads(threads)
    assert seen.keys() == alone.keys() == set(range(STEPS))
    for step, pictures in alone.items():
        assert seen[step].keys() == pictures.keys()
        assert all(np.array_equal(seen[step][id_], pixels) for id_, pixels in pictures.items())
    first, other = losses(straight), losses(changing)
    assert first.keys() == other.keys() == set(range(1, STEPS + 1))
    difference = max(abs(first[step] - other[step]) for step in first)
    print(f"the losses of {STEPS} steps differ by {difference:.1e}")
    assert difference <= 1e-5
    assert 0.2 * first[1] < first[STEPS] < 0.9 * first[1], "too easy, or nothing was learnt"
