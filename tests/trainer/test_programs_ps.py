"""The parameter server program: real processes on loopback, killed and restarted as the operator does.

* synchronous training compared with one process
* asynchronous training over losses
* a program without a cluster or without data
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import warm
from tests.trainer.conftest import NOT_IN_THE_IMAGES, REPOSITORY, free_ports, until
from tests.trainer.idx_files import NAMES, idx_bytes, write_pictures

from dtj_trainer import contract, progress
from dtj_trainer.data.pictures import load_pictures
from dtj_trainer.data.sharding import Sharding

pytest.importorskip("tensorflow", reason="needs the tensorflow extra")

LONGEST_WAIT_SECONDS = 180
"""For one step of a story: a busy machine imports TensorFlow for half a minute, five times at once."""

PROGRAM = "dtj_trainer.programs.ps_image_classification"
EXAMPLES = 1004


class Job:
    """A job's processes, each with a workspace of its own; the evaluator sees the chief's checkpoints."""

    def __init__(self, folder: Path, data: Path, *options: str, workers: int, ps: int) -> None:
        self.folder = folder
        self._data = data
        self._options = options
        tasks = [("chief", 0), *(("worker", n) for n in range(workers)), *(("ps", n) for n in range(ps))]
        ports = free_ports(len(tasks))
        self._cluster: dict[str, list[str]] = {}
        for (role, _), port in zip(tasks, ports, strict=True):
            self._cluster.setdefault(role, []).append(f"127.0.0.1:{port}")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str, options: tuple[str, ...] = (), **environment: str) -> None:
        """Start tasks, `worker-1` for instance, all at once; `options` are added to the job's."""
        for name in names:
            role, _, index = name.partition("-")
            root = self.root(name)
            root.mkdir(parents=True, exist_ok=True)
            if role == "evaluator" and not (root / "checkpoints").exists():
                (self.root("chief-0") / "checkpoints").mkdir(parents=True, exist_ok=True)
                (root / "checkpoints").symlink_to(self.root("chief-0") / "checkpoints")
            task = {"type": role, "index": int(index)}
            config = {"cluster": self._cluster, "task": task, "environment": "cloud"}
            with (self.folder / f"{name}.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    [
                        *(warm.python("tensorflow"), "-m", PROGRAM, f"--data={self._data}", "--no-export"),
                        *(*self._options, *options),
                    ],
                    env={
                        **{key: value for key, value in os.environ.items() if not key.startswith("DTJ_")},
                        "PYTHONPATH": f"{REPOSITORY / 'trainer'}:{NOT_IN_THE_IMAGES}",
                        "DTJ_ROOT": str(root),
                        "DTJ_ROLE": role,
                        "DTJ_CHECKPOINTS_KEEP": "1000",
                        "TF_CONFIG": json.dumps(config),
                        **environment,
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

    def kill(self, name: str, with_signal: int = signal.SIGKILL) -> int:
        self.processes[name].send_signal(warm.KILL if with_signal == signal.SIGKILL else with_signal)
        return self.exit_code(name)

    def exit_code(self, name: str, timeout: float = LONGEST_WAIT_SECONDS) -> int:
        try:
            return self.processes[name].wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} still runs:\n{self.log(name)}")

    def root(self, name: str) -> Path:
        return self.folder / name

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def says(self, name: str, text: str) -> re.Match[str]:
        found = until(
            lambda: re.search(text, self.log(name)),
            f"{name} says {text!r}:\n{self.log(name)}",
            LONGEST_WAIT_SECONDS,
        )
        assert isinstance(found, re.Match)
        return found

    @property
    def step(self) -> int:
        """As the chief last told it."""
        try:
            content = json.loads((self.root("chief-0") / "run/progress.json").read_text())
        except (OSError, ValueError):
            return 0
        return int(content.get("step", 0))

    def reaches(self, step: int) -> None:
        until(
            lambda: self.step >= step,
            f"step {step}, it is at {self.step}:\n{self.log('chief-0')}",
            LONGEST_WAIT_SECONDS,
        )

    def metrics(self, name: str = "chief-0") -> list[dict[str, Any]]:
        lines = (self.root(name) / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def train_lines(self) -> list[dict[str, Any]]:
        return [line for line in self.metrics() if line["kind"] == "train"]

    def variables(self, step: int) -> np.ndarray:
        with np.load(self.root("chief-0") / f"checkpoints/{step}/variables.npz") as held:
            found: np.ndarray = held["trainable"]
            return found

    def saved_steps(self) -> list[int]:
        names = (path.name for path in (self.root("chief-0") / "checkpoints").iterdir())
        return sorted(int(name) for name in names if name.isdecimal())

    def saves_after(self, step: int) -> None:
        until(
            lambda: self.saved_steps()[-1] > step,
            f"a checkpoint after {step}:\n{self.log('chief-0')}",
            90,
        )

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def make_job(tmp_path: Path, small: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(*options: str, data: Path = small, workers: int = 2, ps: int = 1) -> Job:
        made.append(Job(tmp_path / f"job{len(made)}", data, *options, workers=workers, ps=ps))
        return made[-1]

    yield make
    for job in made:
        job.end()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set whose size no batch divides."""
    return write_pictures(tmp_path_factory.mktemp("small"), EXAMPLES, 101)


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many pictures, of which half have a label by chance: gradients stay large for a long time."""
    folder = write_pictures(tmp_path_factory.mktemp("hard"), EXAMPLES, 101, compressed=False)
    chance = np.random.default_rng(2)
    labels = (np.arange(EXAMPLES) % 10).astype("u1")
    wrong = chance.permutation(EXAMPLES)[: EXAMPLES // 2]
    labels[wrong] = chance.integers(0, 10, len(wrong))
    (folder / NAMES[1]).write_bytes(idx_bytes(labels))
    return folder


def alone(data: Path, *, batch: int, steps: set[int], seed: int, lr: float) -> dict[int, np.ndarray]:
    """The cnn trained in this process on whole batches by Keras: its weights after each of `steps`."""
    import keras
    import tensorflow as tf

    from dtj_trainer.keras import models

    train = load_pictures(str(data)).train
    pixels = train.pixels.transpose(0, 2, 3, 1).astype(np.float32)
    model = models.build("cnn", (28, 28, 1), 10, seed)
    optimizer = keras.optimizers.SGD(lr, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=True, autograph=False)
    def step(inputs: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )

    sharding = Sharding(len(train), batch, rank=0, ranks=1, seed=seed)
    found, done, epoch = {}, 0, 0
    while done < max(steps):
        for share in sharding.epoch(epoch):
            step(pixels[share.indices], train.labels[share.indices])
            done += 1
            if done in steps:
                found[done] = np.concatenate([np.asarray(v).reshape(-1) for v in model.trainable_variables])
        epoch += 1
    return found


def test_synchronous_is_one_process_on_the_whole_batch_whoever_dies(
    make_job: Callable[..., Job], hard: Path, tmp_path: Path
) -> None:
    limit = 160
    job = make_job(
        *("--updates=Synchronous", "--batch-size=32", "--epochs=1000", f"--max-steps={limit}", "--seed=5"),
        *("--lr=0.02", "--checkpoint-steps=20", "--log-seconds=0"),
        data=hard,
        ps=2,
    )
    job.start("ps-0", "ps-1", "worker-0", "worker-1", "chief-0")
    job.reaches(30)
    job.kill("worker-1")
    seen = job.step
    job.reaches(seen + 10)  # the other computes both parts
    assert job.processes["chief-0"].poll() is None
    job.kill("chief-0")
    job.start("chief-0", "worker-1")
    restored = int(job.says("chief-0", r"resuming from the checkpoint of step (\d+)")[1])
    assert restored >= 20
    assert job.exit_code("chief-0") == 0

    apart = alone(hard, batch=64, steps={20, limit}, seed=5, lr=0.02)
    for step in (20, limit):
        difference = np.abs(job.variables(step) - apart[step]).max()
        print(f"after {step} steps the weights differ by {difference:.1e}")
        assert difference <= 1e-5
    lines = job.train_lines()
    assert lines[0]["step"] == 1
    assert {worker for line in lines for worker in line["workers"]} == {"0", "1"}
    (end,) = [line for line in job.metrics() if line["kind"] == "end"]
    # Epochs of 1004 examples in steps of 64: fifteen whole ones, and one of 44.
    assert (end["steps"], end["examples"]) == (limit, limit // 16 * EXAMPLES)
    assert (end["updates"], end["workers"], end["ps"]) == ("Synchronous", 2, 2)

    # Servers and workers outlive the chief: another training, with a workspace of its own, takes them over.
    anew, own = {"DTJ_ROOT": str(tmp_path / "anew")}, "--model=tests.trainer.regularized_keras:"
    job.start("chief-0", options=(f"{own}drawn", "--optimizer=adam", "--lr=0.01", "--max-steps=3"), **anew)
    assert job.exit_code("chief-0") == 0
    (line,) = [json.loads(line) for line in (tmp_path / "anew/metrics.jsonl").read_text().splitlines()][-1:]
    assert (line["kind"], line["steps"]) == ("end", 3)
    assert re.search("no gradient reaches 1 weights of the network, .*spare", job.log("chief-0"))
    job.start("chief-0", options=(f"{own}paired", "--batch-size=3"), DTJ_ROOT=str(tmp_path / "refused"))
    assert job.exit_code("chief-0") == 1
    assert job.says(
        "chief-0", "\nthe network fails for a batch of 3, the smallest batch of this training, in "
    )
    assert not (tmp_path / "refused/metrics.jsonl").exists()
    job.start("chief-0", options=("--lr=1e30",), DTJ_ROOT=str(tmp_path / "diverged"))
    assert job.exit_code("chief-0") == 1
    assert re.search(
        r"LossNotFinite: the loss is (nan|inf) at step \d+: try a lower --lr", job.log("chief-0")
    )
    # In the last step there is no loss to tell of it: what would be saved does.
    job.start("chief-0", options=("--lr=1e39", "--max-steps=1"), DTJ_ROOT=str(tmp_path / "diverged-last"))
    assert job.exit_code("chief-0") == 1
    assert "LossNotFinite: not all weights are finite after step 1" in job.log("chief-0")
    assert not list((tmp_path / "diverged-last").glob("checkpoints/*"))
    # And they end at once when they are told to.
    assert [job.kill(name, signal.SIGTERM) for name in ("ps-0", "ps-1", "worker-0", "worker-1")] == [143] * 4


def test_asynchronous_goes_on_after_each_loss_and_counts_exactly(make_job: Callable[..., Job]) -> None:
    job = make_job(
        *("--batch-size=16", "--epochs=100000", "--checkpoint-seconds=1", "--log-seconds=0.5"),
    )
    job.start("ps-0", "worker-0", "worker-1", "chief-0", "evaluator-0")

    # A worker: the others go on, and it takes part again when it is back.
    job.reaches(50)
    job.kill("worker-1")
    lost_at = len(job.train_lines())
    until(
        lambda: "1" not in job.train_lines()[-1]["workers"] and len(job.train_lines()) > lost_at + 1,
        f"the chief goes on with one worker:\n{job.log('chief-0')}",
    )
    job.start("worker-1")
    until(lambda: "1" in job.train_lines()[-1]["workers"], f"worker 1 is back:\n{job.log('chief-0')}", 60)

    # The chief, alone: it takes over servers that have been used by another.
    job.kill("chief-0")
    saved = job.saved_steps()[-1]
    job.start("chief-0")
    assert int(job.says("chief-0", r"resuming from the checkpoint of step (\d+)")[1]) == saved
    job.saves_after(saved)

    # The ps: the chief says so and ends at once, then both come back; the workers have never left.
    job.kill("ps-0")
    assert job.exit_code("chief-0", 20) == 69
    failure = json.loads((job.root("chief-0") / "run/failure-0.json").read_text())
    assert failure["class"] == "ConnectionLost"
    assert re.match(r"parameter server 0 at 127\.0\.0\.1:\d+ does not answer: ", failure["message"])
    again = job.saved_steps()[-1]
    job.start("ps-0", "chief-0")
    job.says("chief-0", rf"resuming from the checkpoint of step {again},")
    job.saves_after(again)

    # SIGTERM: a checkpoint of that very step.
    assert job.kill("chief-0", signal.SIGTERM) == 143
    stopped = int(job.says("chief-0", r"stopped at step (\d+), with a checkpoint")[1])
    assert job.saved_steps()[-1] == stopped

    # From here to the end nobody is lost: every batch counts once.
    limit = stopped + 40
    job.start("chief-0", options=(f"--max-steps={limit}",))
    assert job.exit_code("chief-0") == 0
    last_run = job.log("chief-0").rpartition("resuming from")[2]
    assert "applied twice" not in last_run, "the step on the server and the batches differ"
    assert job.exit_code("evaluator-0", 20) == 0
    (end,) = [line for line in job.metrics() if line["kind"] == "end"]
    assert end["steps"] == limit == job.saved_steps()[-1]
    reported = progress.read(job.root("chief-0") / contract.PROGRESS_FILE)
    assert reported.get("appliedTwice", 0) == end["appliedTwice"]
    steps = [line["step"] for line in job.train_lines()]
    assert all(step > 1 for step in steps[1:]), "the global step began anew"

    tests = job.metrics("evaluator-0")
    assert [line["kind"] for line in tests] == ["test"] * len(tests)
    assert [line["final"] for line in tests] == [False] * (len(tests) - 1) + [True]
    assert tests[-1]["step"] == limit
    assert tests[-1]["accuracy"] >= 0.9
    assert (job.root("evaluator-0") / "tensorboard/eval").is_dir()
    assert (job.root("chief-0") / "tensorboard/train").is_dir()

    import keras

    model = keras.models.load_model(job.root("chief-0") / "model/model.keras")
    test = load_pictures(str(job._data)).test
    logits = np.asarray(model(test.pixels.transpose(0, 2, 3, 1).astype(np.float32)))
    assert (logits.argmax(1) == test.labels).mean() == pytest.approx(tests[-1]["accuracy"])


def test_who_is_alone_or_has_no_data_says_so(make_job: Callable[..., Job], tmp_path: Path) -> None:
    alone_there, without_data = make_job(ps=2), make_job()
    alone_there.start("chief-0", DTJ_PEER_TIMEOUT_SECONDS="1")
    without_data.start("worker-0", "evaluator-0", options=(f"--data={tmp_path}",))
    assert alone_there.exit_code("chief-0") == 69
    failure = json.loads((alone_there.root("chief-0") / "run/failure-0.json").read_text())
    assert failure["class"] == "PeersUnreachable"
    assert re.match(r"after 1 s no answer from parameter server 0 at .*, worker 1 at 127", failure["message"])
    for name in ("worker-0", "evaluator-0"):
        assert without_data.exit_code(name) == 65
        assert (
            without_data.log(name)
            .splitlines()[-1]
            .startswith(f"DataNotFound: {tmp_path} has no train-images")
        )
