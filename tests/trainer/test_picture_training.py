"""The training loop of several ranks: saves, stops, tests, rates, skipped examples. Its ranks are threads."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.trainer.thread_ranks import EXAMPLES, Numbers, Stop, ThreadRanks, metrics, train

from dtj_trainer.data.pictures import Pictures
from dtj_trainer.train import meeting, picture_training
from dtj_trainer.train.meeting import Sums
from dtj_trainer.train.options import parse
from dtj_trainer.train.picture_training import RankPlace, machines_of
from dtj_trainer.train.protocols import PictureModel, Position, Ranks, Tested
from dtj_trainer.train.report import TrainingReport
from dtj_trainer.train.schedule import Ramp, Schedule
from dtj_trainer.train.stop import StopRequest

LONG = ("--epochs=3", "--checkpoint-steps=4")
"""Six steps an epoch."""


def saved_steps(root: Path) -> list[int]:
    return sorted(int(path.name) for path in (root / "checkpoints").iterdir())


def test_a_resumed_run_is_the_uninterrupted_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DTJ_CHECKPOINTS_KEEP", "100")
    straight = train(monkeypatch, tmp_path / "straight", *LONG)
    assert saved_steps(tmp_path / "straight") == [4, 6, 8, 12, 16, 18]
    for step in (4, 8, 12, 16):
        shutil.copytree(tmp_path / f"straight/checkpoints/{step}", tmp_path / f"{step}/checkpoints/{step}")
        resumed = train(monkeypatch, tmp_path / str(step), *LONG)
        found = [(each.weight, each.statistic) for each in resumed]
        assert found == [(each.weight, each.statistic) for each in straight], step


def test_one_clock_decides_when_all_ranks_save(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(meeting, "MEETING_STEPS_MAX", 1)
    clocks = {0: iter(range(0, 10**6, 1)), 1: iter(range(0, 10**9, 1000))}
    of_thread = threading.local()

    def monotonic() -> float:
        return float(next(clocks[of_thread.rank]))

    def before(model: Numbers) -> None:
        of_thread.rank = model.rank

    monkeypatch.setattr(picture_training.time, "monotonic", monotonic)
    first, other = train(monkeypatch, tmp_path, "--epochs=2", "--checkpoint-seconds=15", before=before)
    assert first.did.count("save") > 2  # more than those after each test
    assert [each for each in first.did if each != "save"] == other.did
    assert other.did.count("average") == first.did.count("save")


def test_ranks_that_test_together_make_equally_many_calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone = train(monkeypatch, tmp_path / "alone", test_examples=1)
    assert sorted(each.did.count("test") for each in alone) == [0, 2]  # epochs
    monkeypatch.setattr(Numbers, "tests_together", True)
    together = train(monkeypatch, tmp_path / "together", test_examples=1)
    assert [each.did.count("test") for each in together] == [2, 2]


def test_a_pass_of_skipped_examples_alone_is_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_training, "TEST_BATCH", 2)

    class Counting(PictureModel[Any]):
        def test(self, pixels: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
            calls.append(labels.tolist())
            assert pixels.shape == (len(labels), 1, 8, 8)
            return float(len(labels)), 0.0

    examples = Pictures(np.zeros((4, 1, 8, 8), np.uint8), np.array([-1, -1, 3, -1]))
    model, stop = Counting(), cast(StopRequest, Stop())
    for together, expected in ((False, [[3]]), (True, [[], [3]])):
        calls: list[list[int]] = []
        monkeypatch.setattr(Counting, "tests_together", together)
        assert picture_training.PictureTest(examples, model, Ranks(), None).accuracy(Position(), stop) == 1.0
        assert calls == expected


def test_ranks_of_one_network_count_its_examples_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ThreadRanks, "data_rank", 0)
    monkeypatch.setattr(ThreadRanks, "data_size", 1)
    monkeypatch.setattr(ThreadRanks, "counts", property(lambda self: self.rank == 1))
    options = ("--epochs=1", "--lr=0.1", "--warmup-epochs=0", "--schedule=constant")
    models = train(monkeypatch, tmp_path, *options)
    assert [each.rates for each in models] == [[0.1] * 12] * 2  # not that of two batches
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    start, *_, test, end = lines
    assert (start["batchSize"], start["totalSteps"], start["worldSize"]) == (8, 12, 2)
    assert (test["kind"], test["accuracy"], end["accuracy"]) == ("test", 1.0, 1.0)


def test_a_stop_in_the_test_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(picture_training, "TEST_BATCH", 2)
    monkeypatch.setattr(meeting, "MEETING_STEPS_MAX", 1)

    def stop_rank_1(model: Numbers) -> None:
        def asked() -> None:
            if model.rank == 1 and model.did.count("test") == 7 + 2:  # in the second test
                Stop.here.stop.requested = True

        model.on_test = asked

    # 27 examples: one rank has 14, the other 13, of which the last batch is smaller.
    several = {"test_examples": 27}
    stopped = train(monkeypatch, tmp_path / "run", "--epochs=3", before=stop_rank_1, **several)  # type: ignore[arg-type]
    for rank in stopped:
        assert rank.did[-1] == "stopped"
        assert rank.did.count("test") < 14
    assert saved_steps(tmp_path / "run") == [6, 12]
    resumed = train(monkeypatch, tmp_path / "run", "--epochs=3", **several)  # type: ignore[arg-type]
    straight = train(monkeypatch, tmp_path / "straight", "--epochs=3", **several)  # type: ignore[arg-type]
    # It goes on with the test, and misses none.
    assert [rank.did.count("test") for rank in resumed] == [14, 14]
    found = [[(each.weight, each.statistic) for each in ranks] for ranks in (resumed, straight)]
    assert found[0] == found[1]


def test_the_last_checkpoint_is_there_before_the_model_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there: list[list[int]] = []

    def before(model: Numbers) -> None:
        model.on_export = lambda: there.append(saved_steps(tmp_path))

    train(monkeypatch, tmp_path, "--epochs=1", before=before)
    assert there == [[6]]


@pytest.mark.parametrize(
    ("options", "ranks", "first", "last"),
    [
        (("--warmup-epochs=1",), 1, 0.001, 0.1),
        (("--warmup-epochs=1", "--global-batch-size=16"), 2, 0.001, 0.1),
        (("--warmup-epochs=1", "--no-scale-lr"), 2, 0.001, 0.1),
        (("--warmup-epochs=1",), 2, 0.1, 0.2),
        (("--warmup-epochs=1", "--warmup-start=0.05"), 2, 0.05, 0.2),
        (("--warmup-start=0.02",), 1, 0.02, 0.1),
        ((), 1, 0.1, 0.1),
        ((), 2, 0.1, 0.2),
    ],
)
def test_a_warm_up_warms_up(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: tuple[str, ...],
    ranks: int,
    first: float,
    last: float,
) -> None:
    fixed = ("--epochs=2", "--lr=0.1", "--schedule=constant")
    rates = train(monkeypatch, tmp_path, *fixed, *options, ranks=ranks)[0].rates
    assert (rates[0], rates[-1]) == pytest.approx((first, last))
    assert rates == sorted(rates)
    if first < last and options:
        assert len({round(rate, 9) for rate in rates}) > 3


def test_a_warm_up_does_not_begin_above_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--warmup-start=0.5 is above 0.1, the learning rate at the end"):
        train(monkeypatch, tmp_path, "--lr=0.1", "--warmup-start=0.5", ranks=1)


def test_the_schedule_ends_with_the_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ("--epochs=5", "--max-steps=16", "--lr=0.1", "--warmup-epochs=0.5", "--checkpoint-steps=9")
    straight = train(monkeypatch, tmp_path / "straight", *options)[0].rates
    expected = [Schedule(0.1, Ramp(0, 1, 2), 0.5, 16 / 6, "cosine").at(step / 6) for step in range(16)]
    assert straight == pytest.approx(expected)
    assert straight[-1] < 0.02 * max(straight)
    shutil.copytree(tmp_path / "straight/checkpoints/9", tmp_path / "resumed/checkpoints/9")
    assert train(monkeypatch, tmp_path / "resumed", *options)[0].rates == straight[9:]


def test_more_ranks_after_a_resume_are_warmed_up_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ("--epochs=4", "--lr=0.1", "--warmup-epochs=1", "--schedule=constant")
    two = train(monkeypatch, tmp_path, "--max-steps=18", *options)[0].rates
    assert two[-1] == pytest.approx(0.2)
    four = train(monkeypatch, tmp_path, *options, ranks=4)[0].rates
    # Three steps an epoch.
    assert four == pytest.approx([0.2, 0.2 + 0.2 / 3, 0.2 + 0.4 / 3])
    assert train(monkeypatch, tmp_path, "--epochs=5", *options[1:], ranks=4)[0].rates == pytest.approx(
        [0.4] * 3
    )
    assert train(monkeypatch, tmp_path, "--epochs=6", *options[1:], ranks=1)[0].rates[0] == pytest.approx(0.1)


def test_epochs_are_tested_on_validation_and_the_end_on_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def before(model: Numbers) -> None:
        answer = model.test

        def test(pixels: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
            answer(pixels, labels)
            # Of the validation split, fewer answers are right after each epoch; of the test split, always a half.
            return len(pixels) / (2 if len(pixels) == 3 else 1 + len(model.steps)), 1.0

        monkeypatch.setattr(model, "test", test)

    monkeypatch.setenv("DTJ_CHECKPOINTS_KEEP", "1")
    train(monkeypatch, tmp_path, "--epochs=3", before=before, validation_examples=10, test_examples=6)
    validated, (tested,) = metrics(tmp_path, "validation"), metrics(tmp_path, "test")
    expected = [pytest.approx(1 / (1 + 6 * epoch)) for epoch in (1, 2, 3)]
    assert [(line["step"], line["accuracy"]) for line in validated] == list(
        zip((6, 12, 18), expected, strict=True)
    )
    assert (tested["step"], tested["accuracy"]) == (18, 0.5)
    assert saved_steps(tmp_path) == [6, 18], "the best of validation, and the newest"
    assert json.loads((tmp_path / "model/model.json").read_text())["accuracy"] == 0.5


def test_a_stop_before_the_last_test_leaves_the_model_to_the_next_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(picture_training, "TEST_BATCH", 2)
    monkeypatch.setattr(meeting, "MEETING_STEPS_MAX", 1)

    def stop_rank_1(model: Numbers) -> None:
        def asked() -> None:
            if model.rank == 1 and model.did.count("test") == 2 + 1:  # in the test of the test split
                Stop.here.stop.requested = True

        model.on_test = asked

    splits = {"validation_examples": 8, "test_examples": 20}
    stopped = train(monkeypatch, tmp_path, "--epochs=1", before=stop_rank_1, **splits)  # type: ignore[arg-type]
    assert [rank.did[-1] for rank in stopped] == ["stopped"] * 2
    assert saved_steps(tmp_path) == [6]
    assert not (tmp_path / "model").exists()
    train(monkeypatch, tmp_path, "--epochs=1", **splits)  # type: ignore[arg-type]
    assert len(metrics(tmp_path, "test")) == 1
    assert (tmp_path / "model/model.json").exists()


def test_skipped_examples_are_counted_over_all_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = (3, 5, 40, 41, 95)
    models = train(monkeypatch, tmp_path, "--epochs=2", "--log-seconds=0", damaged=damaged, test_examples=6)
    lines = metrics(tmp_path, "train")
    assert sum(line.get("skippedExamples", 0) for line in lines) == 2 * len(damaged)
    assert sum(len(rank.steps) for rank in models) == 2 * 2 * 6
    assert lines[-1]["examples"] == 2 * EXAMPLES
    assert [line["skippedExamples"] for line in metrics(tmp_path, "test")] == [2, 2]


def test_skipped_examples_are_not_lost_between_two_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(meeting, "MEETING_STEPS_MAX", 1)
    train(monkeypatch, tmp_path, "--epochs=1", "--log-seconds=1000", damaged=range(0, EXAMPLES, 4))
    first, last = metrics(tmp_path, "train")
    assert first["skippedExamples"] + last["skippedExamples"] == EXAMPLES / 4


def test_the_first_line_says_on_how_many_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    train(monkeypatch, tmp_path, "--epochs=1")
    (start,) = metrics(tmp_path, "start")
    assert start["nodes"] == 1
    assert 1 <= start["processors"] <= len(os.sched_getaffinity(0))


def test_processors_that_containers_share_count_once() -> None:
    def of(*places: RankPlace) -> tuple[object, object]:
        found = machines_of(places)
        return found["nodes"], found["processors"]

    assert of(RankPlace("n", "a", 0b11), RankPlace("n", "b", 0b11)) == (1, 2)
    assert of(RankPlace("n", "a", 0b1111, 1.0), RankPlace("n", "b", 0b1111, 1.0)) == (1, 2)
    assert of(RankPlace("n", "a", 0b1111, 3.0), RankPlace("n", "b", 0b1111, 3.0)) == (1, 4)
    assert of(RankPlace("n", "a", 0b01), RankPlace("n", "a", 0b10)) == (1, 2)  # bound, in one container
    assert of(RankPlace("n", "a", 0b11), RankPlace("m", "a", 0b11)) == (2, 4)
    assert of(RankPlace("n", "a", 0b11, 0.5)) == (1, 1)


def test_a_line_is_the_mean_since_the_line_before_and_an_epoch_has_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    options = parse(["--data=none", "--log-seconds=3600"], "program", "", ("cnn",))
    report = TrainingReport(options, 1, 60, 0, top5=True)
    at = Position()
    for number, loss in enumerate((8.0, 4.0, 2.0, 1.0, 0.5, 0.25)):
        at.step, at.examples = at.step + 1, at.examples + 10
        sums = Sums(
            10 * loss, 9 - number, 10, seconds=0.5, steps=1, forward=loss, reduced=8, exchanging=1, skipped=1
        )
        report.trained(at, 6, sums + Sums(top5=10), 0.1 / at.step, last=number in (3, 5))
    report.tested(at, Tested(0.5, 2, 0.75), 1, split="validation", skipped=0)
    report.close()
    first, second, third = metrics(tmp_path, "train")
    assert [line["step"] for line in (first, second, third)] == [1, 4, 6]
    assert (first["loss"], second["loss"], third["loss"]) == (8, 7 / 3, 0.375)
    assert (second["accuracy"], second["stepSeconds"]["forward"]) == (0.7, round(7 / 3, 6))
    assert (second["examplesPerSecond"], second["reducedBytes"], second["skippedExamples"]) == (20, 8, 3)
    assert (second["learningRate"], third["learningRate"]) == (0.1 / 4, 0.1 / 6)
    (epoch,) = metrics(tmp_path, "epoch")
    assert (epoch["step"], epoch["epoch"], epoch["epochExamples"], epoch["top5Accuracy"]) == (6, 1, 60, 1)
    assert (epoch["loss"], epoch["accuracy"]) == (15.75 / 6, 39 / 60)
    (test,) = metrics(tmp_path, "validation")
    assert (test["accuracy"], test["loss"], test["top5Accuracy"]) == (0.5, 2, 0.75)


def test_each_epoch_has_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    train(monkeypatch, tmp_path, "--epochs=3", "--max-steps=15")
    lines = metrics(tmp_path, "epoch")
    assert [(line["epoch"], line["epochExamples"], line["loss"]) for line in lines] == [
        (1, 96, 1),
        (2, 96, 1),
    ]
