"""Steps, epochs and measures that are read from the output of programs that know nothing of dtj.

tests/trainer/outputs has what real libraries printed, as a pod's log kept it: Keras 3.15, transformers (whose figures
are texts), Lightning 2.6 with both of its bars, accelerate 1.15, tqdm 4.70.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj_trainer.curves import output
from dtj_trainer.curves.output import OutputReader
from dtj_trainer.curves.output_lines import said
from dtj_trainer.curves.reading import MOST_VALUES, TrainingReading, rows_of

OUTPUTS = Path(__file__).parent / "outputs"


def read(text: str) -> list[TrainingReading]:
    return OutputReader().take(text.split("\n"))


def bar(n: int, m: int, elapsed: str = "00:10", desc: str = "", rest: str = "") -> str:
    more = f", {rest}" if rest else ""
    return f"{desc}{100 * n // m:3}%|███       | {n}/{m} [{elapsed}<00:20, 12.3it/s{more}]"


@pytest.mark.parametrize(
    ("file", "last", "values"),
    [
        ("keras", TrainingReading(54, 54, 3.0), {"accuracy", "loss", "val_accuracy", "val_loss"}),
        ("keras-verbose-2", TrainingReading(54, 54, 3.0), {"accuracy", "loss", "val_accuracy", "val_loss"}),
        ("transformers", TrainingReading(96, 96, 3.0), set()),
        ("lightning", TrainingReading(96, None, 3.0), {"train_loss", "val_loss"}),
        ("lightning-rich", TrainingReading(96, 96, 3.0), {"val_loss"}),
        ("accelerate", TrainingReading(None, None, 3.0), {"accuracy", "f1"}),
        ("tqdm", TrainingReading(100, 100, 2.0), {"loss"}),
        ("nanogpt", TrainingReading(110, None, None), {"loss"}),
    ],
)
def test_what_real_libraries_print(file: str, last: TrainingReading, values: set[str]) -> None:
    readings = read((OUTPUTS / f"{file}.txt").read_text())
    found = readings[-1]
    assert (found.step, found.total, found.epoch) == (last.step, last.total, last.epoch)
    assert found.values.keys() == values
    steps = [reading.step for reading in readings if reading.step is not None and reading.leads]
    assert steps == sorted(steps)


def test_hugging_face_s_losses_and_evaluations() -> None:
    readings = read((OUTPUTS / "transformers.txt").read_text())
    losses = [reading for reading in readings if "loss" in reading.values]
    assert len(losses) == 9
    assert losses[0].values == {"loss": 0.8104, "grad_norm": 1.089, "learning_rate": 4.531e-05}
    evaluated = [reading.epoch for reading in readings if "eval_loss" in reading.values]
    assert evaluated == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        (
            ["iter 0: loss 4.2, time 123.45ms, mfu -100.00%", "iter 10: loss 3.2, time 23.45ms, mfu 12.34%"],
            TrainingReading(10, None, None, None, {"loss": 3.2}),
        ),
        (
            [
                "Epoch: [0][ 10/5005]\tTime  0.5 ( 1.2)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   0.00 (  0.10)",
                "Epoch: [1][ 20/5005]\tTime  0.5 ( 1.2)\tLoss 5.9e+00 (7.0e+00)\tAcc@1   0.10 (  0.10)",
            ],
            TrainingReading(5025, None, 2.0, None, {"Loss": 5.9, "Acc@1": 0.1}),
        ),
        (
            ["Epoch [1/10], Step [100/600], Loss: 0.1234", "Epoch [2/10], Step [100/600], Loss: 0.0934"],
            TrainingReading(700, 6000, 2.0, None, {"Loss": 0.0934}),
        ),
        (
            [
                "Train Epoch: 1 [640/60000 (1%)]\tLoss: 1.783214",
                "Train Epoch: 2 [0/60000 (0%)]\tLoss: 0.305400",
            ],
            TrainingReading(None, None, 2.0, 60000, {"Loss": 0.3054}),
        ),
        (
            [
                "2026-11-28 02:00:00 INFO step=100 loss=0.5 lr=1e-3",
                "2026-11-28 02:00:10 INFO step=200 loss=.4 lr=1e-3",
            ],
            TrainingReading(200, None, None, None, {"loss": 0.4, "lr": 0.001}),
        ),
        (["epoch 0 loss 0.9", "epoch 1 loss 0.8"], TrainingReading(None, None, 2.0, None, {"loss": 0.8})),
        ([bar(1, 400), bar(200, 400)], TrainingReading(200, 400)),
        (
            [bar(7, 50, desc="Epoch 1/2: ", rest="loss=0.5"), bar(3, 50, "00:01", "Epoch 2/2: ", "loss=0.4")],
            TrainingReading(53, 100, 2.0, None, {"loss": 0.4}),
        ),
    ],
)
def test_lines_of_common_forms(lines: list[str], last: TrainingReading) -> None:
    assert read("\n".join(lines))[-1] == last


def test_one_line_of_a_form_is_not_believed() -> None:
    assert read("step 3 of the installation: error 5") == []
    assert read(bar(1, 10)) == []


@pytest.mark.parametrize(
    "text",
    [
        "Step 1 of 3: loading\nStep 2 of 3: unpacking\nStep 3 of 3: starting",
        "Loaded 60000 images in 12 s\nLoaded 10000 images in 2 s",
        "epoch 12 of the Holocene ended\nepoch 13 of the Holocene began",
        "\n".join(bar(n, 60, desc="Downloading data: ") for n in (1, 30, 60)),
        "\n".join(bar(n, 60, desc="Validation DataLoader 0: ") for n in (1, 30, 60)),
        "\n".join(f"Map: {n}%|██  | {n}/100 [00:01<00:01, 512.1 examples/s]" for n in (1, 30, 60)),
        "\n".join(f"model.safetensors: {n}%|██  | {n}.0M/100M [00:01<00:01, 5.1MB/s]" for n in (1, 30, 60)),
        '{"level": "info", "step": 3}\n{"level": "info", "step": 4}',
        "\x00\xff" * 500,
        "9" * 100_000,
        "{'a': " * 500 + "1" + "}" * 500,
    ],
)
def test_numbers_in_prose_and_other_work_are_no_steps(text: str) -> None:
    assert read(text) == []


def test_a_bar_that_begins_anew_goes_on_and_no_longer_says_how_many_there_are() -> None:
    first = [bar(1, 100, "00:01"), bar(60, 100, "00:20"), bar(100, 100, "00:30")]
    second = [bar(20, 100, "00:05"), bar(80, 100, "00:25")]
    readings = read("\n".join(first + second))
    assert [(reading.step, reading.total) for reading in readings] == [
        (1, 100), (60, 100), (100, 100), (120, None), (180, None),
    ]  # fmt: skip


def test_a_bar_of_epochs_around_the_bar_of_steps() -> None:
    lines = [
        bar(0, 10, desc="epochs: "), bar(1, 100, "00:01"), bar(60, 100, "00:20"),
        bar(1, 10, desc="epochs: "), bar(30, 100, "00:08"),
    ]  # fmt: skip
    readings = read("\n".join(lines))
    assert [(reading.step, reading.epoch) for reading in readings] == [(1, 1.0), (60, 1.0), (130, 2.0)]
    assert {reading.total for reading in readings} == {1000}


def test_two_programs_at_once_contradict_themselves() -> None:
    reader = OutputReader()
    lines = [bar(n, 1000, "00:10") for n in (10, 500, 20, 510, 30, 520)]
    reader.take(lines)
    assert reader.contradicted
    assert reader.take([bar(600, 1000, "00:12")]) == []
    reader = OutputReader()
    reader.take([f"step={n} loss=0.5" for n in (10, 500, 20, 510, 30)])
    assert reader.contradicted


def last_of(lines: Iterable[str]) -> tuple[int | None, int | None, float | None]:
    """The step, the number of steps, and the epoch that the status has at the end."""
    reader = OutputReader()
    readings = reader.take(lines)
    if reader.contradicted or not readings:
        return None, None, None
    last = next((each for each in reversed(readings) if each.leads), TrainingReading())
    return last.step, last.total, last.epoch


FOLDS = [f"Epoch {epoch}/3" for epoch in (1, 2, 3)]
EPOCH = ["1/18 ━━━ 0s 3ms/step - loss: 0.5", "18/18 ━━━ 0s 3ms/step - loss: 0.4"]
BARS = [bar(n, 100, f"00:{n // 5:02}") for n in (1, 50, 100)]


@pytest.mark.parametrize(
    ("lines", "last"),
    {
        "a network against another": (
            [f"[{e}/25][{i}/100]\tLoss_D: 1.2\tLoss_G: 2.1" for e in (0, 1) for i in (0, 50)],
            (150, 2500, 2.0),
        ),
        "episodes with steps": (
            [f"episode {e} step {s} reward 1.0" for e in (1, 2) for s in (0, 9, 19)],
            (38, None, None),
        ),
        "trainings after each other": (
            [f"step {s} loss 0.5" for _ in range(3) for s in (0, 100, 200)],
            (600, None, None),
        ),
        "folds of Keras": (
            [line for _ in range(2) for each in FOLDS for line in (each, *EPOCH)],
            (108, None, 3.0),
        ),
        "evaluation after training": (
            [line for each in FOLDS for line in (each, *EPOCH)]
            + [f"{n}/7 ━ 0s 3ms/step - loss: 9.0" for n in (1, 7)],
            (54, 54, 3.0),
        ),
        "epochs alone": (FOLDS, (None, None, None)),
        "a header, then measures": (
            [line for each in FOLDS for line in (each, "train Loss: 0.5 Acc: 0.6")],
            (None, None, 3.0),
        ),
        "a download, then steps": ([*BARS, *(f"step {s}/50: loss 0.5" for s in (5, 10, 15))], (15, 50, None)),
        "a download, then epochs": (
            [*BARS, *(f"Epoch: {e} | loss 0.5" for e in (1, 2, 3))],
            (None, None, 3.0),
        ),
        "a download, then a longer bar": (
            [*BARS, *(bar(n, 900, f"0{n // 60}:40") for n in (60, 120, 180))],
            (180, 900, None),
        ),
        "plain bars of validation": (
            [line for _ in range(3) for line in (*BARS, bar(1, 20, "00:00"), bar(20, 20, "00:03"))],
            (300, None, None),
        ),
        "steps of a test": (
            [f"step {s} loss 0.5\ntest step {t} loss 9" for s in (10, 20, 30) for t in (1, 2)],
            (30, None, None),
        ),
        "retries": ([f"Retrying batch {n} (attempt 2): error 503" for n in (3, 4, 5)], (None, None, None)),
        "two programs with a prefix": (
            [f"[rank{rank}] step {s - 90 * rank} loss 0.5" for s in (100, 200, 300) for rank in (0, 1)],
            (None, None, None),
        ),
        "a best step": (
            [f"iteration {s} loss 0.5 best: 0.4 at iteration 7" for s in (10, 20)],
            (20, None, None),
        ),
        "numbers beyond any": ([f"step={10**30 + n} loss=1" for n in range(3)], (None, None, None)),
        "JSON": ([f'{{"step": {s}, "loss": 0.5}}' for s in (1, 2)], (2, None, None)),
        "Megatron": (
            [f" iteration {s}/ 1000 | lm loss: 9.1E+00 | number of nan iterations: 0 |" for s in (10, 20)],
            (20, 1000, None),
        ),
        "a bar without an end": ([f"{n}it [00:{n:02}, 12.3it/s, loss=0.4]" for n in (5, 9)], (9, None, None)),
    }.values(),
)
def test_output_that_misleads(lines: list[str], last: tuple[int | None, int | None, float | None]) -> None:
    assert last_of("\n".join(lines).split("\n")) == last


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("step 1 [D loss: 0.5] [G loss: 1.2]", {"D loss": 0.5, "G loss": 1.2}),
        ("Epoch [1/3] validation: Loss: 0.9, lr: 0.1", {"val Loss": 0.9, "lr": 0.1}),
        ("Epoch: 01 | Train Loss: 0.5 | Val. Loss: 0.6", {"Train Loss": 0.5, "val Loss": 0.6}),
        (
            "Test set: Average loss: 0.05, Accuracy: 9800/10000 (98%)",
            {"test loss": 0.05, "test Accuracy": 0.98},
        ),
        ("step 1 loss: 1 batch size: 32", {"loss": 1.0, "batch size": 32.0}),
    ],
)
def test_the_names_of_values(line: str, values: dict[str, float]) -> None:
    found = said(line)
    assert found is not None
    assert found.values == pytest.approx(values)


def test_a_validation_line_has_its_own_step_and_does_not_lead() -> None:
    lines = ["iter 10: loss 3.0", "iter 20: loss 2.9", "step 250: val loss 1.4", "step 500: val loss 1.2"]
    *_, found = read("\n".join(lines))
    assert (found.step, found.leads) == (500, False)


@pytest.mark.bound(
    "agent",
    "A program, by what it prints",
    "Forms of lines that the agent remembers",
    "64",
)
@pytest.mark.parametrize("keys", [20_000, pytest.param(1_000_000, marks=pytest.mark.whole)])
def test_keys_without_end_take_bounded_memory(keys: int) -> None:
    reader = OutputReader()
    for first in range(0, keys, 64):
        named = " ".join(f"key{key}=1" for key in range(first, first + 64))
        reader.take([f"step={first} loss=0.5 {named}"])
    assert len(reader._forms) <= output.MOST_FORMS
    assert len(pickle.dumps(reader)) < 500_000


@pytest.mark.parametrize(
    "line",
    ["a " * 999, "1/" * 900, "|" * 1900, "[" * 1900, "━" * 1900, "x=1 " * 490, "0" * 1990, "Epoch " * 300],
)
def test_no_line_takes_long(line: str) -> None:
    begun = time.process_time()
    for _ in range(20):
        said(line + " 7")
    assert time.process_time() - begun < 2.0  # A backtracking expression takes minutes.


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    read(f"{text}\n{text}\nstep 1 loss {text}")


def test_rows_by_kind() -> None:
    values = {"train/loss": 1.0, "val_loss": 2.0, "eval/accuracy": 0.5, "Accuracy/test": 0.25, "lr": 0.1}
    rows = rows_of({**values, "nan": float("nan"), "step": 3.0})
    assert rows == {
        "train": {"loss": 1.0, "learningRate": 0.1},
        "validation": {"loss": 2.0, "accuracy": 0.5},
        "test": {"accuracy": 0.25},
    }
    assert len(rows_of({f"n{number}": 1.0 for number in range(1000)})["train"]) == MOST_VALUES
