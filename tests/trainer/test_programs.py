"""The parts of the training programs that need no second rank.

* learning rates
* data loading, augmentation and models
* metrics and threads
* SIGTERM
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tests import warm
from tests.patience import PATIENCE
from tests.trainer.conftest import REPOSITORY

from dtj_trainer import contract
from dtj_trainer.data.pictures import Pictures
from dtj_trainer.data.sharding import Sharding, Share
from dtj_trainer.torch import saved_model
from dtj_trainer.torch.models import MODELS, build
from dtj_trainer.train import stop, threads
from dtj_trainer.train.augment import shift_and_flip
from dtj_trainer.train.batches import Batch, Batches, picture_batches
from dtj_trainer.train.model_files import picture_facts
from dtj_trainer.train.options import parse
from dtj_trainer.train.report import MetricsFile
from dtj_trainer.train.schedule import Ramp, Schedule, ramp_of, rate_scale
from dtj_trainer.train.seeds import chances_of, seed_of
from dtj_trainer.train.stop import EXIT_CODE, StopRequest

pytestmark = pytest.mark.torch


def test_the_rate_warms_up_to_the_scaled_one_and_decays() -> None:
    schedule = Schedule(0.1, Ramp(0, 1, 4), warmup_epochs=2, epochs=10, decay="cosine")
    rates = [schedule.at(done) for done in (0, 1, 2, 6, 10)]
    assert rates == pytest.approx([0.1, 0.25, 0.4, 0.2, 0.0])
    assert Schedule(0.1, Ramp(0, 1, 4), 0, 10).at(0) == pytest.approx(0.4)
    assert Schedule(0.1, Ramp(0, 1, 1), 2, 10).at(1) == pytest.approx(0.1)


def test_more_ranks_are_warmed_up_to_and_fewer_are_not() -> None:
    first = Ramp(0, 1, 4)
    assert first.to(4, 5, 2) is first
    more = ramp_of(first.plain(), 8, 5, 2)
    assert [more.at(done, 2) for done in (5, 6, 7, 9)] == [4, 6, 8, 8]
    # Once more, in the middle of that warm-up; and on the same ranks, which goes on with it.
    assert ramp_of(more.plain(), 8, 6, 2) == more
    assert ramp_of(more.plain(), 16, 6, 2) == Ramp(6, 6, 16)
    fewer = ramp_of(more.plain(), 2, 6, 2)
    assert [fewer.at(done, 2) for done in (6, 7, 9)] == [2, 2, 2]
    assert ramp_of(None, 4, 5, 2) == first  # a checkpoint of a release that did not write it


def test_the_rate_of_adam_grows_with_the_root_of_the_ranks() -> None:
    assert [rate_scale("sgd", ranks) for ranks in (1, 4, 16)] == [1, 4, 16]
    assert [rate_scale("adam", ranks) for ranks in (1, 4, 16)] == [1, 2, 4]


@pytest.mark.parametrize(
    "name", [*MODELS[:2], *(pytest.param(name, marks=pytest.mark.nets) for name in MODELS[2:])]
)
def test_the_saved_model_gives_the_same_answers(tmp_path: Path, name: str) -> None:
    model = build(name, (1, 28, 28), 10, [0.3], [0.4]).eval()
    facts: dict[str, object] = {"accuracy": 0.5}
    names = [f"class {number}" for number in range(10)]
    (tmp_path / "model.onnx").write_text("of an earlier training")
    saved_model.write(
        tmp_path,
        model.state_dict(),
        name=name,
        shape=(1, 28, 28),
        classes=10,
        facts=facts,
        class_names=names,
    )
    pixels = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
    with torch.inference_mode():
        torch.testing.assert_close(saved_model.load(tmp_path)(pixels), model(pixels))
        torch.testing.assert_close(saved_model.load_exported(tmp_path)(pixels), model(pixels))
    described = saved_model.describe(tmp_path)
    assert (described["accuracy"], described["labels"]) == (0.5, names)
    assert described["preprocessing"]["layout"] == "NCHW"
    files = ["model.json", "model.pt", "model.pt2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", *files]
    named = json.loads((tmp_path / "manifest.json").read_text())["files"]
    assert [file["path"] for file in named] == files


@pytest.mark.parametrize(
    ("shape", "names", "known"),
    [
        ((3, 32, 32), ("cat", "dog"), {"labels", "preprocessing"}),
        ((3, 32, 32), ("0", "1"), {"preprocessing"}),
        ((3, 32, 64), (), set()),
    ],
    ids=["names", "numbers", "oblong"],
)
def test_the_description_of_a_model_says_what_is_known_of_its_pictures(
    shape: tuple[int, int, int], names: tuple[str, ...], known: set[str]
) -> None:
    assert picture_facts(shape, "NCHW", names).keys() == known


def pictures(count: int) -> Pictures:
    chance = np.random.default_rng(0)
    return Pictures(chance.integers(0, 256, (count, 1, 28, 28)).astype("u1"), np.arange(count))


Arrays = tuple[np.ndarray, np.ndarray]


def prepare(pixels: np.ndarray, labels: np.ndarray) -> Arrays:
    return pixels, labels


def maker(workers: int, *, augment: bool) -> Batches[Arrays]:
    sharding = Sharding(100, 8, rank=0, ranks=1, seed=1)
    return picture_batches(pictures(100), sharding, prepare, workers=workers, augment=augment, seed=1)


def batches(workers: int, *, augment: bool, position: int = 0) -> list[Batch[Arrays]]:
    return list(maker(workers, augment=augment).epoch(2, position))


@pytest.mark.parametrize("augment", [False, True])
def test_batches_are_the_same_with_threads_and_after_a_resume(
    augment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtj_trainer.train.batches.IN_LINE_BYTES", 0)
    alone = batches(0, augment=augment)
    threaded = batches(3, augment=augment)
    resumed = batches(1, augment=augment, position=alone[4].share.position)
    for left, right in [*zip(alone, threaded, strict=True), *zip(alone[5:], resumed, strict=True)]:
        assert np.array_equal(left.data[0], right.data[0])
        assert np.array_equal(left.data[1], right.data[1])


def test_only_what_is_waited_for_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("dtj_trainer.train.batches.time.monotonic", lambda: now[0])

    def slowly(_epoch: int, share: Share) -> Batch[Share]:
        now[0] += 0.25
        return Batch(share, share)

    made = Batches(Sharding(100, 8, rank=0, ranks=1, seed=1), slowly)
    for _ in made.epoch(0, 0):
        now[0] += 10
    assert made.take_waited() == 13 * 0.25
    assert made.take_waited() == 0


def test_chances_follow_from_seed_epoch_and_example_and_are_even() -> None:
    ids = np.random.default_rng(0).permutation(100_000)
    chances = chances_of(1, 2, ids)
    assert np.array_equal(chances_of(1, 2, ids[70:90]), chances[70:90])
    others = [chances_of(2, 2, ids), chances_of(1, 3, ids), chances_of(1, 2, ids + 1)]
    assert not any((chances == other).any() for other in others)
    for bit in range(64):
        ones = (chances >> np.uint64(bit) & np.uint64(1)).mean()
        assert abs(ones - 0.5) < 0.01, bit  # six deviations
    shifted = shift_and_flip(np.ones((len(ids), 1, 2, 2), np.uint8), chances)
    # Of two rows, two are left in one of 9 places, and one in two places: 2 of 9 rows, and of 9 columns.
    assert shifted.mean() == pytest.approx((2 / 9) ** 2, abs=0.005)


def test_ranks_and_steps_draw_from_different_seeds() -> None:
    seeds = {seed_of(seed, step, rank) for seed in range(3) for step in range(50) for rank in range(8)}
    assert len(seeds) == 3 * 50 * 8


def test_augmented_pictures_are_shifted_and_mirrored_ones() -> None:
    plain, augmented = batches(0, augment=False), batches(0, augment=True)
    assert augmented[0].data[0].shape == plain[0].data[0].shape
    assert augmented[0].data[0].flags.c_contiguous
    original = plain[0].data[0][0, 0]
    padded = np.pad(original, 4)
    windows = [padded[down : down + 28, right : right + 28] for down in range(9) for right in range(9)]
    possible = [version for window in windows for version in (window, window[:, ::-1])]
    for before, after in zip(plain[:3], augmented[:3], strict=True):
        assert np.array_equal(before.data[1], after.data[1])
    assert any(np.array_equal(augmented[0].data[0][0, 0], version) for version in possible)


def test_metrics_are_lines_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_ATTEMPT", "2")
    file = MetricsFile(4, tmp_path / "metrics.jsonl")
    file.add("train", {"step": 1, "loss": math.nan})
    file.add("test", {"step": 2, "accuracy": 0.5})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["train", "test"]
    assert lines[0] | {"time": ""} == {
        "kind": "train",
        "time": "",
        "attempt": 2,
        "worldSize": 4,
        "step": 1,
        "loss": None,
    }


def test_sigterm_is_noted() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        request = StopRequest()
        assert not request.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.requested
        assert EXIT_CODE == 143
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_program_that_can_not_end_after_sigterm_is_ended() -> None:
    assert stop.STOP_SECONDS < contract.STOP_SECONDS
    code = """
import os, signal, time
from dtj_trainer.train import stop
stop.STOP_SECONDS = stop._LOOK_SECONDS = 0.1
stop.end_when_stopped(stop.StopRequest(), "nothing was saved")
os.kill(os.getpid(), signal.SIGTERM)
while True:
    time.sleep(1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_CODE
    assert "nothing was saved within 0 s of SIGTERM" in done.stderr


def test_threads_are_shared_among_the_ranks_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "available_processors", lambda: 7.5)
    assert [threads.threads_per_rank(ranks) for ranks in (1, 2, 8)] == [7, 3, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.threads_per_rank(2) is None


@pytest.mark.parametrize(
    ("quota", "processors"), [("150000 100000", 1.5), ("max 100000", None), ("10000000 100000", None)]
)
def test_a_containers_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, processors: float | None
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    monkeypatch.setattr(threads, "_QUOTA_V2", file)
    usable = len(os.sched_getaffinity(0))
    assert threads.available_processors() == min(usable, processors or usable)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model=vgg"], "argument --model: there is no model 'vgg': choose from cnn, resnet18, vgg16,"),
        (["--epochs=0"], "argument --epochs: 0 must be more than 0"),
        (["--lr=-1"], "argument --lr: -1 must be more than 0"),
        (["--lr=nan"], "argument --lr: nan must be more than 0"),
        (["--batch-size=big"], "argument --batch-size: 'big' is not a whole number"),
        (["--data-workers=-1"], "argument --data-workers: -1 must be 0 or more"),
        (["--seed=-1"], "argument --seed: -1 must be 0 or more"),
        (["--epoch5"], "unrecognized arguments: --epoch5"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments, "program", "what it does", MODELS)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


EXAMPLES = sorted((REPOSITORY / "manifests/examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_program_of_an_example_knows_its_options(file: Path) -> None:
    spec = yaml.safe_load(file.read_text())["spec"]
    program = spec["command"][-1]
    if "ps_image" in program:
        from dtj_trainer.ps import options as parameter_server  # imports Keras

        parameter_server.parse(spec["args"], program, "")
    else:
        parse(spec["args"], program, "", ("cnn", "resnet18"), mixed_precision="_tf_" not in program)


def test_sigterm_ends_a_program_that_waits_for_its_data(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        name = "dtj_trainer.programs.horovod_image_classification"
        program = subprocess.Popen(
            [warm.python("torch"), "-m", name, "--data=s3://datasets/pictures"],
            env={
                **os.environ,
                "DTJ_ROOT": str(tmp_path),
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
            },
        )
        try:
            asked, _ = silent.accept()  # It asks for the data, and is never answered.
            program.terminate()
            assert program.wait(30 * PATIENCE) in {EXIT_CODE, -signal.SIGTERM}
            asked.close()
        finally:
            program.kill()
            program.wait()
