"""He et al.'s recipe for CIFAR-10: the parameter server program does step by step what the DDP program does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.trainer.example_sets import blocked

from dtj_trainer.data.sharding import Sharding
from dtj_trainer.train.batches import Batches, picture_batches
from dtj_trainer.train.loop import Training
from dtj_trainer.train.options import parse as parse_ddp
from dtj_trainer.train.protocols import Position, Ranks

tf = pytest.importorskip("tensorflow", reason="needs the tensorflow extra")
torch = pytest.importorskip("torch", reason="needs the torch extra")

from dtj_trainer.ps import chief, parameters, updates, worker_pictures  # noqa: E402
from dtj_trainer.ps.options import parse as parse_ps  # noqa: E402
from dtj_trainer.torch import model as torch_optimizers  # noqa: E402

RECIPE = [
    *("--lr=0.1", "--momentum=0.9", "--weight-decay=1e-4", "--augment", "--batch-size=16", "--epochs=7"),
    *("--schedule=step", "--step-at=3,5", "--step-gamma=0.1", "--label-smoothing=0.1", "--clip-norm=2.5"),
]
DDP = parse_ddp(RECIPE, "program", "", ("cnn",))
PS = parse_ps(RECIPE, "program", "")
BOTH = (DDP, PS)


class Kept:
    """Takes the place of a model: keeps each step's rate and pixels."""

    def __init__(self, pixels_of: Any) -> None:
        self.rates: list[float] = []
        self.pixels: list[np.ndarray] = []
        self._pixels_of = pixels_of

    def train(self, data: Any, share: Any, rate: float, step: int) -> None:
        del share, step
        self.rates.append(rate)
        self.pixels.append(self._pixels_of(data))

    def __getattr__(self, name: str) -> Any:
        """The rest of a model, of a saver and of a request to stop does nothing."""
        empty = {"take_sums": [0.0, 0.0, 0.0, 0.0], "take_parts": (), "settle": 0}
        return lambda *_, **__: empty.get(name, {})


def trained(options: Any, batches: Batches[Any], kept: Kept) -> Kept:
    saver = SimpleNamespace(
        busy=True, prepare_saves=lambda: None, save=kept.save, close=kept.close, export=kept.export
    )
    stop: Any = SimpleNamespace(requested=False)
    model: Any = kept
    training = Training(options, batches, model, Ranks(), saver, Position(), None, stop, None)  # type: ignore[arg-type]
    while training.at.epoch < options.epochs:
        training._train_epoch()
        training._end_epoch()
    return kept


def test_rates_and_pictures_are_those_of_the_ddp_program() -> None:
    examples, own = blocked(101), blocked(101)
    sharding = Sharding(examples.blocks, 16, rank=0, ranks=1, seed=DDP.seed)
    batches = picture_batches(
        examples, sharding, lambda pixels, _: pixels, workers=0, augment=DDP.augment, seed=DDP.seed
    )
    ddp = trained(DDP, batches, Kept(lambda pixels: pixels))
    augment = worker_pictures.augmentation(PS)
    own.read = own._whole.read  # type: ignore[method-assign]  # The blocks are announced otherwise.

    def of_worker(dealt: worker_pictures.Dealt) -> np.ndarray:
        there = worker_pictures.Dealt.unpacked(np.frombuffer(dealt.packed(), "<i8"))
        return worker_pictures.read_batch(own, there.ids, there.epoch, augment)[0].transpose(0, 3, 1, 2)

    other = Sharding(own.blocks, 16, rank=0, ranks=1, seed=PS.seed)
    ps = trained(PS, Batches(other, chief._dealer(other)), Kept(of_worker))
    assert ps.rates == ddp.rates
    assert [round(ps.rates[step], 6) for step in (0, 20, 21, 34, 35, 48)] == [
        0.1,
        0.1,
        0.01,
        0.01,
        0.001,
        0.001,
    ]
    assert len(ps.pixels) == len(ddp.pixels) == 49
    for mine, theirs in zip(ps.pixels, ddp.pixels, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("given", "first"),
    [
        (("--warmup-epochs=2",), 0.001),
        (("--warmup-epochs=1.5", "--warmup-start=0.03", "--schedule=cosine"), 0.03),
        (("--warmup-start=0.02",), 0.02),
        (("--schedule=cosine",), 0.1),
    ],
)
def test_a_warm_up_is_that_of_the_ddp_program(given: tuple[str, ...], first: float) -> None:
    chosen = ["--lr=0.1", "--batch-size=16", "--epochs=3", *given]
    of_ddp = parse_ddp(["--schedule=constant", *chosen], "program", "", ("cnn",))
    rates = []
    for options in (of_ddp, parse_ps(chosen, "program", "")):
        sharding = Sharding(101, 16, rank=0, ranks=1, seed=1)
        rates.append(trained(options, Batches(sharding, chief._dealer(sharding)), Kept(len)).rates)
    assert rates[0] == rates[1]
    assert rates[1][0] == pytest.approx(first)
    assert max(rates[1]) == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--warmup-start=0.2", "--warmup-start=0.2 is above --lr=0.1, the learning rate at the end"),
        ("--step-gamma=0.5", "--step-gamma has an effect only with --schedule=step"),
        ("--step-at=3", "--step-at has an effect only with --schedule=step"),
    ],
)
def test_an_option_without_effect_is_refused(
    given: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_ps(["--lr=0.1", given], "program", "")
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("ps", [1, 3])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_decays_and_clipping_are_those_of_the_ddp_program(
    monkeypatch: pytest.MonkeyPatch, ps: int, name: str
) -> None:
    monkeypatch.setattr(parameters, "ps_device", lambda _: "/device:CPU:0")
    chosen = [*RECIPE, f"--optimizer={name}", "--weight-decay=0.05"]
    chance = np.random.default_rng(1)
    initial = chance.normal(size=10).astype(np.float32)
    mine = parameters.ShardedVector(initial, ps, "mine")
    rule = parameters.make_optimizer(parse_ps(chosen, "program", ""), mine)
    theirs = torch.nn.Linear(10, 1, bias=False)
    theirs.weight.data = torch.tensor(initial[None].copy())
    options = parse_ddp(chosen, "program", "", ("cnn",))
    other = torch_optimizers.make_optimizer(options, theirs)
    for step, rate in enumerate((0.1, 0.1, 0.01, 0.01, 0.001)):
        gradient = (chance.normal(size=10) * (step + 1)).astype(np.float32)
        rule.apply(tf.constant(gradient), tf.constant(step, tf.int64), tf.constant(rate, tf.float32))
        theirs.weight.grad = torch.tensor(gradient[None].copy())
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), options.clip_norm)
        for group in other.param_groups:
            group["lr"] = rate
        other.step()
        np.testing.assert_allclose(
            mine.value(), theirs.weight.detach().numpy()[0], rtol=0, atol=1e-6 if name == "sgd" else 5e-4
        )


def test_the_loss_is_smoothed_as_that_of_the_ddp_program() -> None:
    logits, labels = np.random.default_rng(1).normal(size=(5, 4)).astype("f4"), np.arange(5) % 4

    class Network:
        def stateless_call(
            self, weights: Any, other: Any, pixels: Any, training: bool, return_losses: bool
        ) -> Any:
            del other, pixels, training, return_losses
            return weights[0], [], []

        weights: tuple[Any, ...] = ()
        non_trainable_variables: tuple[Any, ...] = ()

    layout = SimpleNamespace(split=lambda vector: [tf.reshape(vector, (5, 4))], join=lambda each: each[0])
    none = SimpleNamespace(split=lambda vector: [], join=lambda _: tf.zeros([0]))
    held: Any = SimpleNamespace(trainable_layout=layout, other_layout=none)
    network: Any = Network()
    step = updates.WorkerStep(network, held, (1, 1, 1), PS.label_smoothing)
    found = step.forward(
        *(tf.constant(logits.ravel()), tf.zeros([0]), tf.zeros([5]), tf.constant(labels, tf.int32)),
        tf.constant(1, tf.int64),
    )
    wanted = torch.nn.functional.cross_entropy(
        torch.tensor(logits), torch.tensor(labels), label_smoothing=DDP.label_smoothing, reduction="sum"
    )
    assert float(found.counts[0]) == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("text", ["3,2", "0,4", "x", "3,3"])
def test_epochs_that_do_not_ascend_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_ps([f"--step-at={text}"], "program", "")
    assert "--step-at" in capsys.readouterr().err
