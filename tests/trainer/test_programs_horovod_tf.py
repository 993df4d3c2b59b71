"""The Horovod program with Keras and real ranks on this machine, and what Horovod's wheel refuses of Keras 3.

* two ranks compared with one process
* stops and resumes
* Keras 2 and Keras 3
* memory of large checkpoints
* batch statistics
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from tests import warm
from tests.trainer import horovod_run
from tests.trainer.conftest import NOT_IN_THE_IMAGES
from tests.trainer.idx_files import write_pictures

from dtj_trainer.train.state_file import identity

WHEEL = Path(sys.prefix) / "horovod-tensorflow"
"""Where `docker/wheels.py --install` puts it: the environment itself has the wheel for PyTorch."""
QUIET = {
    "PYTHONPATH": os.pathsep.join(
        filter(None, (f"{WHEEL}:{NOT_IN_THE_IMAGES}", os.environ.get("PYTHONPATH")))
    ),
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",
}

pytestmark = [
    pytest.mark.skipif(not WHEEL.is_dir(), reason="needs Horovod's wheel for TensorFlow"),
]

NORMED = "--model=tests.trainer.normed_keras:network"
SHARED = ("--max-steps=20", "--seed=5", "--no-scale-lr", "--warmup-epochs=0")


class Run(horovod_run.Run):
    framework = "horovod-tensorflow"
    program = "dtj_trainer.programs.horovod_tf_image_classification"
    environment: ClassVar[dict[str, str]] = QUIET

    def state(self, step: int) -> dict[str, np.ndarray]:
        with np.load(self.root / f"checkpoints/{step}/state.npz", allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files if name != "run.json"}


class LargeState(Run):
    program = "tests.trainer.large_state"
    environment: ClassVar[dict[str, str]] = {**QUIET, "LARGE_STATE": "keras:200"}


def done_by(code: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The end of a program, which is one process without mpirun."""
    return subprocess.run(
        [warm.python(Run.framework), "-c", code, *words],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In the last step of an epoch two ranks have not equally many: 333 = 10 * 32 + 7 + 6."""
    return write_pictures(tmp_path_factory.mktemp("small"), 333, 101)


@pytest.fixture(scope="module")
def together(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("two"), small, 2, "--batch-size=16", *SHARED).ended()


def test_two_ranks_are_one_process_on_the_whole_batch(small: Path, tmp_path: Path, together: Run) -> None:
    alone = Run(tmp_path, small, 1, "--batch-size=32", *SHARED).ended()
    assert "the weights are the same on all 2 ranks" in together.output
    left, right = together.state(20), alone.state(20)
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert np.abs(value - right[name]).max() <= 1e-5, name
    assert any(name.endswith("momentum") for name in left)
    tested = [[line for line in run.metrics if line["kind"] == "test"] for run in (together, alone)]
    assert [line["accuracy"] for line in tested[0]] == [line["accuracy"] for line in tested[1]]
    # Epoch 1 ends at step 11, where the shares are uneven; the run ends in epoch 2.
    assert [line["step"] for line in tested[0]] == [11, 20]


def test_what_is_kept(small: Path, together: Run) -> None:
    losses = [line["loss"] for line in together.metrics if line["kind"] == "train"]
    assert losses[-1] < losses[0] / 2
    progress = json.loads((together.root / "run/progress.json").read_text())
    assert (progress["step"], progress["totalSteps"], progress["percent"]) == (20, 20, 100.0)

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(together.root / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("test/accuracy")] == [11, 20]

    description = json.loads((together.root / "model/model.json").read_text())
    assert description["accuracy"] == together.metrics[-1]["accuracy"]
    assert description["input"]["shape"] == ["batch", 28, 28, 1]
    program = """
import sys, keras, numpy as np
from dtj_trainer.data.pictures import load_pictures
test = load_pictures(sys.argv[1]).test
logits = keras.models.load_model(sys.argv[2]).predict(test.pixels.transpose(0, 2, 3, 1), verbose=0)
print((logits.argmax(1) == test.labels).mean())
"""
    done = done_by(program, small, together.root / "model/model.keras")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) == pytest.approx(description["accuracy"], abs=1e-6)


def test_a_stopped_run_goes_on_at_its_step(small: Path, tmp_path: Path, end: list[Run]) -> None:
    options = (
        "--batch-size=8",
        "--epochs=400",
        "--log-seconds=0",
        "--optimizer=adam",
        "--lr=0.002",
        "--augment",
        "--schedule=constant",
    )
    stopped = Run(tmp_path / "stopped", small, 2, *options)
    end.append(stopped)
    stopped.says(r"step [1-9]\d+/\d+ ")
    stopped.terminate_ranks()
    step = int(stopped.says(r"stopped at step (\d+), with a checkpoint")[1])
    stopped.ended(143)
    limit = f"--max-steps={step + 30}"
    resumed = Run(tmp_path / "stopped", small, 2, *options, limit).ended()
    assert f"resuming from the checkpoint of step {step}," in resumed.output
    straight = Run(tmp_path / "straight", small, 2, *options, limit).ended()
    assert resumed.metrics[-1]["weightsSha256"] == straight.metrics[-1]["weightsSha256"]


def test_batch_statistics_are_averaged_and_a_checkpoint_of_another_optimizer_is_refused(
    tmp_path: Path,
) -> None:
    small = write_pictures(tmp_path / "data", 64, 20, size=12)
    run = Run(tmp_path / "run", small, 2, "--batch-size=16", NORMED, "--max-steps=2").ended()
    assert "the weights are the same on all 2 ranks" in run.output
    adam = Run(tmp_path / "run", small, 1, NORMED, "--optimizer=adam").ended(1)
    assert (
        "was written with --optimizer=sgd, not adam: give the same --optimizer, or start anew" in adam.output
    )


def test_keras_3_with_a_distributed_optimizer_is_refused(tmp_path: Path) -> None:
    """Else it would train each rank alone, in silence; the error is in the wheel, where every script meets it."""
    program = """
import json, sys
import horovod.keras, horovod.tensorflow, horovod.tensorflow.keras
import keras

modules = horovod.tensorflow, horovod.tensorflow.keras, horovod.keras
horovod.tensorflow.init()
calls = [lambda module=module: module.DistributedOptimizer(keras.optimizers.Adam()) for module in modules]
calls += [lambda module=module: module.load_model("any.keras") for module in modules[1:]]
said = []
for call in calls:
    try:
        call()
    except RuntimeError as error:
        said.append(str(error))
# What is no optimizer of Keras 3's is left alone: here one as tf_keras has them.
class Keras2:
    def __init__(self, **_): ...
    def get_config(self): return {}
    @classmethod
    def from_config(cls, config): return cls(**config)
class SGD(Keras2): ...
said.append(type(horovod.tensorflow.keras.DistributedOptimizer(SGD())).__name__)
print(json.dumps(said))
"""
    done = done_by(program)
    assert done.returncode == 0, done.stderr
    *refusals, wrapped = json.loads(done.stdout.splitlines()[-1])
    assert len(refusals) == 5
    assert wrapped == "SGD"
    for refusal in refusals:
        assert re.search(r"Keras 3 doesn't average .*DistributedGradientTape .*\.value .*tf_keras", refusal)


OWN_LOSSES = """
import horovod.tensorflow as hvd, numpy as np
from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.data.sharding import Share
from dtj_trainer.keras.horovod_ranks import KerasRanks
from dtj_trainer.keras.model import KerasModel
from dtj_trainer.train.options import parse
hvd.init()
pictures = Pictures(np.random.default_rng(1).integers(0, 256, (4, 1, 8, 8)).astype("u1"), np.arange(4))

def changed(name):
    own = f"tests.trainer.regularized_keras:{name}"
    options = parse([f"--model={own}", "--momentum=0", "--weight-decay=0"], "program", "", ("cnn",))
    model = KerasModel(options, PictureSet(pictures, pictures, 4), KerasRanks())
    (kernel,) = model.network.trainable_variables
    before = kernel.numpy()
    # This rank has 4 of the 8 examples of a step.
    model.train(model.prepare(pictures.pixels, pictures.labels), Share(np.arange(4), 4, 8, 8), 0.01, 0)
    return before, kernel.numpy() - before

weight, plain = changed("plain")
values = (pictures.pixels.reshape(4, 64) / 127.5 - 1).astype("f4")
of_weight = -0.01 * 20 * weight * 4 / 8
of_outputs = -0.01 * 2 * values.T @ (values @ weight) / 4 * 4 / 8
for name, wanted in (("regularized", of_weight), ("active", of_outputs), ("added", of_outputs)):
    np.testing.assert_allclose(changed(name)[1] - plain, wanted, atol=1e-5)
    print(name)
"""
"""A program: what a step adds to the weights for losses of a network's own, beside the same network without."""


def test_a_networks_own_losses_count_once_a_step() -> None:
    done = done_by(OWN_LOSSES)
    assert done.stdout.split() == ["regularized", "active", "added"], done.stderr


TRIAL = """
import logging, random
import horovod.tensorflow as hvd, numpy as np
from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.keras import saved_model as trial
from dtj_trainer.keras.horovod_ranks import KerasRanks
from dtj_trainer.keras.model import KerasModel
from dtj_trainer.train.options import parse
hvd.init()
logging.basicConfig(format="%(message)s", level=logging.WARNING)
pictures = Pictures(np.random.default_rng(1).integers(0, 256, (19, 1, 8, 8)).astype("u1"), np.arange(19) % 4)

def trained(name, *options):
    own = f"--model=tests.trainer.regularized_keras:{name}"
    chosen, data = parse([own, *options], "program", "", ("cnn",)), PictureSet(pictures, pictures, 4)
    model = KerasModel(chosen, data, KerasRanks())
    for step, share in enumerate(Sharding(19, 2, rank=0, ranks=1, seed=1).epoch(0)):
        model.train(model.prepare(pictures.pixels[share.indices], pictures.labels[share.indices]), share, 0.01, step)
    drawn = [random.random(), float(np.random.rand())]
    return step + 1, [each.numpy().tobytes() for each in model.network.variables], drawn

tried = []
made = trial.try_pass
trial.try_pass = lambda *given: (tried.append(given[1]), made(*given))
with_trial = trained("drawn", "--batch-size=2")
trial.try_pass = lambda *_: None
assert with_trial == trained("drawn", "--batch-size=2")
assert (with_trial[0], tried) == (10, [1])
trial.try_pass = made
try:
    trained("paired", "--batch-size=2")
except SystemExit as error:
    print(error)
"""
"""A program: ten steps with and without the trial of a network, and a network that fails in the last step."""


def test_a_network_is_tried_before_the_training_and_stays_as_it_is() -> None:
    done = done_by(TRIAL)
    assert done.returncode == 0, done.stderr
    assert "the network fails for a batch of 1, the smallest batch of this training, in " in done.stdout
    assert "choose --batch-size so that the last step has more" in done.stdout
    assert re.search("no gradient reaches 1 weights of the network, .*spare", done.stderr)


def test_an_example_without_weight_enters_no_statistics() -> None:
    code = horovod_run.STATISTICS.format(
        horovod="tensorflow",
        framework="keras",
        statistics="keras.model",
        name="Keras",
        model=NORMED.partition("=")[2],
        device="",
    )
    done = done_by(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4", "True", "0", "False", "4.0"]


def test_a_large_checkpoint_takes_no_more_memory_than_it_is_large(tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "data", 200, 20, size=12)

    def run(steps: int) -> LargeState:
        options = (*horovod_run.LARGE_STATE_OPTIONS, f"--max-steps={steps}")
        return LargeState(tmp_path / "run", data, 2, *options)

    horovod_run.assert_a_large_state_is_resumed_in_little_memory(run, tmp_path, "state.npz")


SAVES = """
import sys, horovod.tensorflow as hvd, numpy as np
from pathlib import Path
from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.data.sharding import Share
from dtj_trainer.keras.horovod_ranks import KerasRanks
from dtj_trainer.keras.model import KerasModel, KerasSaver
from dtj_trainer.train import staged_arrays
from dtj_trainer.train.options import parse

hvd.init()
pictures = Pictures(np.random.default_rng(1).integers(0, 256, (4, 1, 12, 12)).astype("u1"), np.arange(4))
data = PictureSet(pictures, pictures, 4)
options = parse(["--model=tests.trainer.normed_keras:network"], "program", "", ("cnn",))
ranks = KerasRanks()
model = KerasModel(options, data, ranks)
batch = model.prepare(pictures.pixels, pictures.labels)

def step(number):
    model.train(batch, Share(np.arange(4), 4, 4, 4), 0.1, number)

step(0)
for by, large in (("process", 0), ("thread", 2**40)):
    staged_arrays.LARGE_BYTES = large
    saver = KerasSaver(options, data, model, ranks)
    saver.prepare_saves()
    for number in range(2):
        waiting, beside = (Path(sys.argv[1], f"{kind}-{by}-{number}.npz") for kind in ("waiting", "beside"))
        run = {"position": [number, 0, 0]}
        digest = saver.digest()
        saver.write_state(waiting, run)
        write = saver.stage(run)
        step(number)
        write(beside)
        trained = saver.digest()
        saver.load_state(beside)
        print(saver.read_run(beside) == run, trained != digest, saver.digest() == digest)
    saver.close()
"""


def test_a_save_beside_the_training_is_the_state_of_its_step(tmp_path: Path) -> None:
    command = [warm.python(Run.framework), "-c", SAVES, str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, **QUIET}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 12
    for by in ("process", "thread"):
        for number in range(2):
            files = [tmp_path / f"{kind}-{by}-{number}.npz" for kind in ("waiting", "beside")]
            assert identity(files[0]) == identity(files[1])


def test_a_resume_within_an_epoch_is_exact_with_batch_statistics(tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "data", 200, 20, size=12)
    options = ("--batch-size=16", NORMED, "--checkpoint-steps=3", "--max-steps=6")
    straight = Run(tmp_path / "straight", data, 2, *options).ended()
    shutil.copytree(tmp_path / "straight/checkpoints/3", tmp_path / "resumed/checkpoints/3")
    resumed = Run(tmp_path / "resumed", data, 2, *options).ended()
    assert "resuming from the checkpoint of step 3, epoch 1" in resumed.output
    assert resumed.metrics[-1]["weightsSha256"] == straight.metrics[-1]["weightsSha256"]
