"""The Horovod program with real ranks on this machine.

* two ranks compared with one process
* stops and resumes, also with another number of ranks
* wrong data and numbers
* memory of large checkpoints
* batch statistics and dropout
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tests import warm
from tests.trainer import horovod_run
from tests.trainer.idx_files import FASHION_MNIST, write_pictures

NORMED = "--model=tests.trainer.normed_torch:network"
pytestmark = pytest.mark.torch


class Run(horovod_run.Run):
    program = "dtj_trainer.programs.horovod_image_classification"

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = torch.load(self.root / "model/model.pt", weights_only=True)
        return state


DROPOUT = """
import sys
from pathlib import Path
import horovod.torch as hvd, numpy as np, torch
from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.data.sharding import Share
from dtj_trainer.torch.models import PictureClassifier
from dtj_trainer.torch import model as torch_model
from dtj_trainer.train.options import parse
from dtj_trainer.torch.horovod_ranks import TorchRanks
from dtj_trainer.torch.model import TorchSaver
hvd.init()
masks = []

def build(*_):
    drop = torch.nn.Dropout(0.5)
    drop.register_forward_hook(lambda _module, given, dropped: masks.append(dropped == 0))
    layers = torch.nn.Flatten(), torch.nn.Linear(64, 64), drop, torch.nn.Linear(64, 4)
    return PictureClassifier(torch.nn.Sequential(*layers), [0.0], [1.0])

torch_model.build = build
pictures = Pictures(np.random.default_rng(1).integers(0, 256, (4, 1, 8, 8)).astype("u1"), np.arange(4))
options = parse([], "program", "", ("cnn", "resnet18"))

data = PictureSet(pictures, pictures, 4)

def of_rank(rank):
    ranks = TorchRanks()
    ranks.rank = rank
    model = torch_model.TorchModel(options, data, torch.device("cpu"), ranks)
    return model, TorchSaver(options, data, model, ranks)

def train(made, *steps):
    masks.clear()
    for step in steps:
        made.train(made.prepare(pictures.pixels, pictures.labels), Share(np.arange(4), 4, 4, 4), 0.01, step)
    return [mask.clone() for mask in masks]

(first, saver), (other, other_saver), path = of_rank(0), of_rank(1), Path(sys.argv[1])
assert saver.digest() == other_saver.digest()
before = train(first, 0, 1)
saver.write_state(path, {})
after = train(first, 2, 3)
assert len({mask.numpy().tobytes() for mask in [*before, *after, *train(other, 0, 1, 2, 3)]}) == 8
resumed, resumed_saver = of_rank(0)
resumed_saver.load_state(path)
assert all(map(torch.equal, train(resumed, 2, 3), after))
assert resumed_saver.digest() == saver.digest()
print("all drawn")
"""


class LargeState(Run):
    program = "tests.trainer.large_state"
    environment: ClassVar[dict[str, str]] = {"LARGE_STATE": "torch:200"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set whose size no batch divides."""
    return write_pictures(tmp_path_factory.mktemp("small"), 1004, 101)


def assert_close(left: Run, right: Run, tolerance: float) -> None:
    for name, value in left.weights.items():
        difference = (value - right.weights[name]).abs().max().item()
        assert difference <= tolerance, f"{name} differs by {difference}"


def test_two_ranks_are_one_process_on_the_whole_batch(small: Path, tmp_path: Path) -> None:
    shared = ("--max-steps=20", "--seed=5", "--lr=0.05", "--no-scale-lr", "--warmup-epochs=0")
    together = Run(tmp_path / "two", small, 2, "--batch-size=16", *shared).ended()
    alone = Run(tmp_path / "one", small, 1, "--batch-size=32", *shared).ended()
    assert "the weights are the same on all 2 ranks" in together.output
    assert_close(together, alone, 1e-5)


def test_no_import_is_left_to_the_first_optimizer() -> None:
    code = """
import sys, torch, dtj_trainer.torch.model
before = set(sys.modules)
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0).zero_grad()
print(*sorted(name for name in set(sys.modules) - before if name.startswith("torch._dynamo")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_first_step_is_always_written(small: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, small, 1, "--batch-size=8", "--max-steps=40", "--log-seconds=1000").ended()
    assert [line["step"] for line in run.metrics if line["kind"] == "train"] == [1, 40]
    assert re.search(r"step 1/40 epoch 1: loss", run.output)


def test_also_with_adam_and_a_last_step_that_is_shared_out_unevenly(small: Path, tmp_path: Path) -> None:
    # 1004 = 3 * 334 + 2: in the last step of an epoch two ranks have one example, the third has none.
    shared = ("--epochs=3", "--optimizer=adam", "--lr=0.002", "--no-scale-lr")
    together = Run(tmp_path / "three", small, 3, "--batch-size=334", *shared).ended()
    alone = Run(tmp_path / "one", small, 1, "--batch-size=1002", *shared).ended()
    assert together.metrics[-1]["steps"] == alone.metrics[-1]["steps"] == 6
    assert_close(together, alone, 1e-5)
    assert together.metrics[-2]["accuracy"] == alone.metrics[-2]["accuracy"]


def test_a_stopped_run_goes_on_at_its_step(small: Path, tmp_path: Path, end: list[Run]) -> None:
    options = (
        "--batch-size=8",
        "--epochs=40",
        "--log-seconds=0",
        "--model=cnn",
        "--augment",
        "--schedule=constant",
    )
    stopped = Run(tmp_path / "stopped", small, 2, *options)
    end.append(stopped)
    stopped.says(r"step [1-9]\d+/2520 ")
    stopped.terminate_ranks()
    found = stopped.says(r"stopped at step (\d+), with a checkpoint")
    step = int(found[1])
    stopped.ended(143)
    assert (stopped.root / f"checkpoints/{step}/state.pt").is_file()
    limit = f"--max-steps={step + 30}"
    resumed = Run(tmp_path / "stopped", small, 2, *options, limit).ended()
    assert f"resuming from the checkpoint of step {step}," in resumed.output
    straight = Run(tmp_path / "straight", small, 2, *options, limit).ended()
    assert resumed.metrics[-1]["weightsSha256"] == straight.metrics[-1]["weightsSha256"]
    steps = [line["step"] for line in resumed.metrics if line["kind"] == "train"]
    assert steps == sorted(steps)


def test_checkpoints_by_steps_resume_on_another_number_of_ranks(tmp_path: Path) -> None:
    small = write_pictures(tmp_path / "data", 200, 20, size=12)
    options = ("--batch-size=16", "--model=shufflenet_v2", "--checkpoint-steps=2")
    first = Run(tmp_path / "run", small, 2, *options, "--max-steps=5").ended()
    kept = sorted(path.name for path in (first.root / "checkpoints").iterdir())
    assert kept == ["2", "4", "5"]
    second = Run(tmp_path / "run", small, 1, *options, "--max-steps=7").ended()
    assert "resuming from the checkpoint of step 5, epoch 1" in second.output
    assert second.metrics[-1]["steps"] == 7
    other = Run(tmp_path / "run", small, 1, "--model=cnn").ended(1)
    assert "is of a shufflenet_v2, not of a cnn: give the same --model, or start anew" in other.output


def test_a_resume_with_other_data_or_fewer_steps_ends(tmp_path: Path, end: list[Run]) -> None:
    more, fewer = (write_pictures(tmp_path / str(n), n, 20, size=12) for n in (200, 40))
    options = ("--batch-size=16", "--model=cnn")
    Run(tmp_path / "run", more, 1, *options, "--max-steps=4").ended()

    shorter = Run(tmp_path / "run", more, 1, *options, "--max-steps=3")
    end.append(shorter)
    assert shorter.ended().metrics[-1]["steps"] == 4

    refused = Run(tmp_path / "run", fewer, 1, *options)
    end.append(refused)
    assert (
        "is from the middle of an epoch of 200 training examples, but the data has 40 now: give the same data"
        in refused.ended(1).output
    )

    path = tmp_path / "run/checkpoints/4/state.pt"
    state = torch.load(path, weights_only=True)
    del state["trainingExamples"], state["order"]  # as versions before wrote it
    torch.save(state, path)
    old = Run(tmp_path / "run", fewer, 1, *options, "--epochs=2")
    end.append(old)
    assert old.ended().metrics[-1]["steps"] == 4 + 3


def test_bad_data_and_bad_numbers_end_with_a_reason(small: Path, tmp_path: Path) -> None:
    missing = Run(tmp_path / "a", tmp_path, 1).ended(65)
    assert (
        f"DataNotFound: {tmp_path} has no train-images-idx3-ubyte.gz or train-images-idx3-ubyte"
        in missing.output
    )
    diverged = Run(tmp_path / "b", small, 1, "--lr=1e30", "--max-steps=20").ended(1)
    assert re.search(r"LossNotFinite: the loss is (nan|inf) at step \d+: try a lower --lr", diverged.output)


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="needs Debian's dataset-fashion-mnist")
def test_fashion_mnist_to_the_end(tmp_path: Path) -> None:
    # A quarter of an epoch. The whole epoch, and accuracy 0.85: tests/cluster/test_horovod.py.
    run = Run(tmp_path, FASHION_MNIST, 2, "--max-steps=120", "--tensorboard-seconds=2").ended()
    (test,) = [line for line in run.metrics if line["kind"] == "test"]
    assert test["accuracy"] >= 0.7
    assert test["worldSize"] == 2

    losses = [line["loss"] for line in run.metrics if line["kind"] == "train"]
    assert losses[-1] < losses[0] / 2
    assert all(0 <= line["dataWaitShare"] <= 1 for line in run.metrics if line["kind"] == "train")
    progress = json.loads((tmp_path / "run/progress.json").read_text())
    assert (progress["step"], progress["totalSteps"], progress["percent"]) == (120, 120, 100.0)
    assert progress["accuracy"] == test["accuracy"]

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = [event.value for event in events.Scalars("train/loss")]
    assert shown[-1] < shown[0] / 2
    assert [event.value for event in events.Scalars("test/accuracy")] == pytest.approx([test["accuracy"]])

    for option in ((), ("--exported",)):
        done = subprocess.run(
            [
                *(
                    warm.python("torch"),
                    "-m",
                    "dtj_trainer.programs.evaluate",
                    f"--model-dir={tmp_path / 'model'}",
                ),
                *(f"--data={FASHION_MNIST}", *option),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout)
        assert found["accuracy"] == pytest.approx(test["accuracy"], abs=2e-4)
        assert (found["reported"], found["examples"]) == (test["accuracy"], 10000)


def test_an_example_without_weight_enters_no_statistics() -> None:
    code = horovod_run.STATISTICS.format(
        horovod="torch",
        framework="torch",
        statistics="torch.buffers",
        name="Torch",
        model=NORMED.partition("=")[2],
        device="__import__('torch').device('cpu'), ",
    )
    done = subprocess.run([warm.python("torch"), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "True", "0", "False", "4.0"]


def test_a_large_checkpoint_takes_no_more_memory_than_it_is_large(tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "data", 200, 20, size=12)

    def run(steps: int) -> LargeState:
        options = (*horovod_run.LARGE_STATE_OPTIONS, f"--max-steps={steps}")
        return LargeState(tmp_path / "run", data, 2, *options)

    horovod_run.assert_a_large_state_is_resumed_in_little_memory(run, tmp_path, "state.pt")


def test_a_resume_within_an_epoch_is_exact_with_batch_statistics(tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "data", 200, 20, size=12)
    options = ("--batch-size=16", NORMED, "--checkpoint-steps=3", "--max-steps=6")
    straight = Run(tmp_path / "straight", data, 2, *options).ended()
    shutil.copytree(tmp_path / "straight/checkpoints/3", tmp_path / "resumed/checkpoints/3")
    resumed = Run(tmp_path / "resumed", data, 2, *options).ended()
    assert "resuming from the checkpoint of step 3, epoch 1" in resumed.output
    assert resumed.metrics[-1]["weightsSha256"] == straight.metrics[-1]["weightsSha256"]


def test_dropout_differs_by_rank_and_step_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    done = subprocess.run(
        [warm.python("torch"), "-c", DROPOUT, tmp_path / "state.pt"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["all", "drawn"], done.stderr
