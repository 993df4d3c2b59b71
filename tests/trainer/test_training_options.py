"""Optimizers, clipping, label smoothing, precision and speed of the PyTorch programs, on thread ranks and alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.thread_ranks import ThreadRanks, Together
from torch import Tensor, nn

from dtj_trainer.artifacts import checkpoints
from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.torch import model
from dtj_trainer.torch.model import Precision, TorchModel, TorchSaver
from dtj_trainer.torch.models import MODELS
from dtj_trainer.torch.ranks import GradientAveraging, TensorRanks
from dtj_trainer.train.options import OPTIMIZERS, TrainingOptions, parse
from dtj_trainer.train.protocols import Position
from dtj_trainer.train.schedule import Ramp, Schedule

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
CHANCE = np.random.default_rng(1)


def pictures(count: int, side: int = 8) -> PictureSet:
    pixels = CHANCE.integers(0, 256, (count, 1, side, side)).astype("u1")
    return PictureSet(Pictures(pixels, np.arange(count) % 10), Pictures(pixels, np.arange(count) % 10), 10)


DATA = pictures(32)


class Averaging(GradientAveraging):
    """See GradientAveraging. The ranks' gradients are averaged when the optimizer's step begins."""

    def __init__(self, network: nn.Module, optimizer: Any, ranks: TorchThreadRanks) -> None:
        super().__init__(network, optimizer)
        self._ranks = ranks

    @contextmanager
    def averaged(self) -> Any:
        weights = list(self.network.parameters())
        for weight, mean in zip(weights, self._ranks.means([each.grad for each in weights]), strict=True):
            weight.grad = mean
        yield


class TorchThreadRanks(ThreadRanks, TensorRanks):
    """See TensorRanks: one of several threads."""

    def means(self, tensors: list[Any]) -> list[Tensor]:
        given = self.exchange("gradients", tensors)
        means = [torch.stack(each).mean(0) for each in zip(*given, strict=True)]
        self.exchange("averaged", None)
        return means

    def averaging(
        self, network: nn.Module, optimizer: Any, passes: int, *, every_weight: bool = True
    ) -> GradientAveraging:
        return Averaging(network, optimizer, self)

    def average(self, tensor: Tensor, name: str) -> Tensor:
        return self.means([tensor])[0]

    def first(self, tensor: Tensor, name: str) -> Tensor:
        return self.exchange(name, tensor.clone())[0]  # type: ignore[no-any-return]

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        raise NotImplementedError


def options(*given: str) -> TrainingOptions:
    return parse(
        ["--data=none", *given],
        "program",
        "",
        MODELS,
        grad_accumulation=True,
        sync_batchnorm=True,
        pytorch=True,
    )


def train(model: TorchModel, ranks: TensorRanks, steps: range, size: int, data: PictureSet = DATA) -> None:
    """Train with a rate of 0.05; the examples of step i are those of step i of an endless epoch."""
    sharding = Sharding(len(data.train), size, rank=ranks.rank, ranks=ranks.size, seed=1)
    shares = [share for epoch in range(1 + steps.stop // sharding.steps()) for share in sharding.epoch(epoch)]
    for step in steps:
        share = shares[step]
        batch = model.prepare(data.train.pixels[share.indices], data.train.labels[share.indices])
        model.train(batch, share, 0.05, step)


def trained(*given: str, steps: int = 4, ranks: int = 1) -> dict[str, Tensor]:
    """Train, and return the weights, which are the same on all ranks."""
    chosen = options(*given)
    together = Together(ranks)
    members = [TorchThreadRanks(together, rank) if ranks > 1 else TensorRanks() for rank in range(ranks)]
    # One after the other: threads share the generator of the first weights.
    models = [TorchModel(chosen, DATA, CPU, member) for member in members]
    size = chosen.batch_size * chosen.grad_accumulation
    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(lambda model, member: train(model, member, range(steps), size), models, members))
    weights = [dict(model.network.named_parameters()) for model in models]
    assert [difference(each, weights[0]) for each in weights[1:]] == [0] * (ranks - 1)
    return weights[0]


def difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    with torch.no_grad():
        return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer_resumes_bit_for_bit(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    chosen = options(f"--optimizer={optimizer}", "--batch-size=8", "--clip-norm=0.5", "--label-smoothing=0.1")
    ranks = TensorRanks()

    def new() -> tuple[TorchModel, TorchSaver]:
        model = TorchModel(chosen, DATA, CPU, ranks)
        return model, TorchSaver(chosen, DATA, model, ranks)

    straight, saver = new()
    first = {name: value.clone() for name, value in straight.network.named_parameters()}
    train(straight, ranks, range(3), 8)
    saver.save(Position(3, 0, 24), Ramp(0, 1, 1), None, final=False, wait=True)
    train(straight, ranks, range(3, 6), 8)
    resumed, its = new()
    assert its.resume()[0] == Position(3, 0, 24)
    train(resumed, ranks, range(3, 6), 8)
    assert its.digest() == saver.digest()
    assert difference(first, dict(resumed.network.named_parameters())) > 1e-4
    assert checkpoints.newest() is not None


def test_a_clipped_gradient_is_that_of_all_ranks_and_passes() -> None:
    plain = ("--momentum=0", "--weight-decay=0", "--batch-size=16")
    first = trained(*plain, steps=0)
    clipped = trained(*plain, "--clip-norm=0.01", steps=1)
    moved = torch.cat([(clipped[name] - first[name]).detach().reshape(-1) for name in first])
    assert float(moved.norm()) == pytest.approx(0.05 * 0.01, rel=1e-3)
    assert difference(clipped, trained(*plain, steps=1)) > 1e-4
    one = trained("--batch-size=16", "--clip-norm=0.5", steps=4)
    parts = trained("--batch-size=4", "--grad-accumulation=2", "--clip-norm=0.5", steps=4, ranks=2)
    assert difference(one, parts) < 1e-5


def test_smoothed_labels() -> None:
    chosen = options("--label-smoothing=0.2", "--batch-size=32")
    model = TorchModel(chosen, DATA, CPU, TensorRanks())
    pixels, labels = torch.from_numpy(DATA.train.pixels), torch.from_numpy(DATA.train.labels)
    with torch.no_grad():
        logs = model.network(pixels).log_softmax(1)
    expected = -(0.8 * logs[torch.arange(32), labels] + 0.2 * logs.mean(1)).sum()
    train(model, TensorRanks(), range(1), 32)
    assert model.take_sums()[0] == pytest.approx(float(expected), rel=1e-5)
    right, tested, top5 = model.test(DATA.train.pixels, DATA.train.labels)
    assert 0 <= right <= top5
    assert tested != pytest.approx(float(expected), rel=1e-3)


def test_steps_of_the_rate() -> None:
    schedule = Schedule(0.4, Ramp(0, 1, 2), 1, 30, "step", step_epochs=3, step_gamma=0.5)
    assert [schedule.at(done) for done in (0.5, 1, 2.9, 3, 5.9, 6)] == pytest.approx(
        [0.6, 0.8, 0.8, 0.4, 0.4, 0.2]
    )


def test_precision_of_the_device() -> None:
    assert Precision(CPU, None).dtype is None
    assert Precision(CPU, None, "bfloat16").dtype is torch.bfloat16
    assert Precision(CPU, False, "float16").dtype is None
    with pytest.raises(SystemExit, match="float16 needs a GPU"):
        Precision(CPU, None, "float16")


def test_channels_last_changes_the_layout_and_nothing_else() -> None:
    found = trained("--channels-last")
    assert found["network.features.3.weight"].is_contiguous(memory_format=torch.channels_last)
    assert not trained()["network.features.3.weight"].is_contiguous(memory_format=torch.channels_last)
    assert difference(found, trained()) < 1e-5


def test_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        model.set_algorithms(options("--deterministic"))
        assert torch.are_deterministic_algorithms_enabled()
        model.set_algorithms(options("--cudnn-benchmark"))
        assert torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(mode=False)
        torch.backends.cudnn.benchmark = False


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SystemExit, match="--compile needs a C\\+\\+ compiler, which this image lacks"):
        TorchModel(options("--compile"), DATA, CPU, TensorRanks())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["--deterministic", "--cudnn-benchmark"],
            "--cudnn-benchmark: not allowed with argument --deterministic",
        ),
        (
            ["--profile-steps=5"],
            "argument --profile-steps: '5' must be A:B, the first and the last step, with 1 <= A <= B",
        ),
        (["--profile-steps=0:2"], "must be A:B"),
        (["--profile-steps=3:2"], "must be A:B"),
        (["--label-smoothing=1"], "argument --label-smoothing: 1 must be less than 1"),
        (["--clip-norm=0"], "argument --clip-norm: 0 must be more than 0"),
        (["--optimizer=lion"], "argument --optimizer: invalid choice: 'lion'"),
        (
            ["--step-epochs=3"],
            "--step-epochs has an effect only with --schedule=step: give both, or leave the option out",
        ),
        (["--step-gamma=0.5", "--schedule=cosine"], "--step-gamma has an effect only with --schedule=step"),
        (["--momentum=0.8", "--optimizer=adam"], "--momentum has an effect only with --optimizer=sgd"),
        (
            ["--global-batch-size=8", "--grad-accumulation=2"],
            "--grad-accumulation has no effect with --global-batch-size: it fixes the examples of a step",
        ),
        (
            ["--global-batch-size=8", "--scale-lr"],
            "--scale-lr has no effect with --global-batch-size: it fixes the examples of a step",
        ),
        (["--warmup-start=0.1", "--warmup-epochs=0"], "--warmup-start has no effect with --warmup-epochs=0"),
        (
            ["--amp-dtype=bfloat16", "--no-amp"],
            "--amp-dtype has no effect with --no-amp: leave one of the options",
        ),
    ],
)
def test_wrong_options(capsys: pytest.CaptureFixture[str], given: list[str], message: str) -> None:
    with pytest.raises(SystemExit):
        options(*given)
    assert message in capsys.readouterr().err


def test_the_documentation_names_each_option_and_network(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("--help")
    shown = set(re.findall(r"--(?!no-|help)[a-z0-9-]+", capsys.readouterr().out))
    page = (Path(__file__).parents[2] / "docs/models.md").read_text()
    assert len(shown) > 30
    assert [each for each in sorted(shown) if f"`{each}" not in page] == []
    assert [each for each in MODELS if f"`{each}`" not in page] == []


def test_the_parts_of_a_step_are_measured() -> None:
    chosen = options("--batch-size=8", "--grad-accumulation=2")
    model = TorchModel(chosen, DATA, CPU, TensorRanks())
    train(model, TensorRanks(), range(3), 16)
    parts = model.take_parts()
    assert (parts.steps, parts.reduced) == (3, 0)
    seconds = (parts.forward, parts.backward, parts.optimizer, parts.exchanging)
    assert min(seconds) > 0
    assert 0 <= parts.communication < parts.exchanging < parts.backward + parts.communication
    assert model.take_parts().steps == 0
    hooks = [each for each in model.network.parameters() if each._post_accumulate_grad_hooks]
    assert len(hooks) == 2


def test_a_trace_of_some_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    chosen = options("--batch-size=8", "--profile-steps=2:3")
    model = TorchModel(chosen, DATA, CPU, TensorRanks())
    train(model, TensorRanks(), range(4), 8)
    (trace,) = (tmp_path / "tensorboard/profile").iterdir()
    assert trace.match("rank-0.*.pt.trace.json")
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"]]
    assert names.count("Optimizer.step#SGD.step") == 2
    cut = TorchModel(options("--batch-size=8", "--profile-steps=4:9"), DATA, CPU, TensorRanks())
    train(cut, TensorRanks(), range(4), 8)
    cut.close()
    assert len(list((tmp_path / "tensorboard/profile").iterdir())) == 2


@pytest.mark.parametrize("name", [each for each in MODELS if each != "vgg16"])
def test_a_step_of_each_network_on_two_ranks(name: str) -> None:
    trained(f"--model={name}", "--batch-size=2", steps=1, ranks=2)


@pytest.mark.nets
@pytest.mark.skipif(not any(map(shutil.which, model._COMPILERS)), reason="torch.compile needs a C++ compiler")
def test_a_compiled_network_trains_the_same() -> None:
    assert difference(trained("--compile"), trained()) < 1e-5


@pytest.mark.nets
@pytest.mark.parametrize("name", MODELS)
def test_each_network_overfits_64_pictures(name: str) -> None:
    data = pictures(64, side=32)
    rate = 1e-4 if name == "vgg16" else 1e-3
    model = TorchModel(
        options(f"--model={name}", "--optimizer=adam", "--batch-size=64"), data, CPU, TensorRanks()
    )
    sharding = Sharding(64, 64, rank=0, ranks=1, seed=1)
    accuracy, step = 0.0, 0
    while accuracy <= 0.95 and step < 100:
        for share in sharding.epoch(step):
            batch = model.prepare(data.train.pixels[share.indices], data.train.labels[share.indices])
            model.train(batch, share, rate, step)
            step += 1
        accuracy = model.take_sums()[1] / 64
    print(f"{name}: accuracy {accuracy:.3f} after {step} steps")
    assert accuracy > 0.95
