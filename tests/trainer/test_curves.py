"""Rows of metrics.jsonl, and the progress, of programs that write none themselves."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dtj_trainer import contract, progress, tensorboard
from dtj_trainer.curves import curves as curves_module
from dtj_trainer.curves.curves import Curves
from dtj_trainer.curves.event_scalars import EventFile, Scalar, scalars_of
from dtj_trainer.launch.status_server import PhaseLog, ProgressWatch


class Pod:
    """The files of a pod, and its curves."""

    def __init__(self, root: Path, output: contract.ReadOutput = "true", attempt: int = 1) -> None:
        self.metrics, self.log, self.events = (
            root / "metrics.jsonl",
            root / "rank-0.log",
            root / "tensorboard",
        )
        self.report = root / "progress.json"
        self.utilisation = root / contract.UTILISATION
        self.curves = Curves(
            self.metrics,
            self.report,
            [self.log],
            lambda: [self.events, root],
            attempt,
            utilisation=self.utilisation,
            output=output,
        )
        self.curves._size = curves_module._size(self.metrics)

    def prints(self, *lines: str) -> None:
        with self.log.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def logs(
        self, step: int, name: str = "events.out.tfevents.1", at: float | None = None, **values: float
    ) -> None:
        self.events.mkdir(exist_ok=True)
        with (self.events / name).open("ab") as file:
            file.write(
                tensorboard.scalars(
                    at or time.time(), step, {k.replace("__", "/"): v for k, v in values.items()}
                )
            )

    def look(self) -> list[dict[str, Any]]:
        """The rows so far."""
        self.curves._searched = float("-inf")
        self.curves.look()
        return (
            [json.loads(line) for line in self.metrics.read_text().splitlines()]
            if self.metrics.exists()
            else []
        )


def test_rows_and_progress_of_output(tmp_path: Path) -> None:
    pod = Pod(tmp_path, attempt=3)
    pod.prints("loading", "step=10/100 loss=2.0 val_loss=2.5")
    assert pod.look() == []
    pod.prints("step=20/100 loss=1.0 val_loss=1.5", "step=3")
    rows = pod.look()
    assert [(row["kind"], row["step"], row["loss"]) for row in rows] == [
        ("train", 10, 2.0), ("train", 20, 1.0), ("validation", 10, 2.5), ("validation", 20, 1.5),
    ]  # fmt: skip
    assert {(row["source"], row["attempt"]) for row in rows} == {("Output", 3)}
    told = pod.curves.progress()
    assert told.pop("updatedTime").endswith("Z")
    assert told == {"step": 20, "totalSteps": 100, "percent": 20.0, "loss": 1.0, "source": "Output"}


def test_the_time_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(curves_module.time, "monotonic", lambda: now[0])
    pod = Pod(tmp_path)
    pod.prints("step=10/100 loss=1", "step=10/100 loss=1")
    pod.look()
    now[0] += 60
    pod.prints("step=40/100 loss=1")
    pod.look()
    told = pod.curves.progress()
    assert (told["etaSeconds"], told["stepsPerSecond"]) == (120.0, 0.5)


def test_the_watch_tells_them_where_the_program_reports_no_step(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    watch = ProgressWatch(pod.report, PhaseLog(), pod.curves.progress)
    pod.prints("step=1 loss=1", "step=2 loss=1")
    pod.look()
    assert watch.now()["step"] == 2
    assert watch.now()["source"] == "Output"
    progress.Reporter(pod.report).report(step=7, final=True)
    assert watch.now()["step"] == 7
    assert "source" not in watch.now()


def test_trusted_output_and_none(tmp_path: Path) -> None:
    for output, source in (("trusted", "TrustedOutput"), ("false", None)):
        folder = tmp_path / output
        folder.mkdir()
        pod = Pod(folder, output)  # type: ignore[arg-type]
        pod.prints("step=1 loss=1", "step=2 loss=1")
        pod.look()
        assert pod.curves.progress().get("source") == source


def test_output_that_contradicts_itself_says_nothing(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.prints("step=1 loss=1", "step=2 loss=1")
    pod.look()
    pod.prints(*[f"step={step} loss=1" for step in (900, 3, 901, 4, 902, 5)])
    before = pod.look()
    assert pod.curves.progress().keys() == {"source", "updatedTime"}
    pod.prints("step=903 loss=1", "step=904 loss=1")
    assert pod.look() == before


def test_event_files_count_more_than_output(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.prints("step=1 loss=1", "step=2 loss=1")
    assert len(pod.look()) == 2
    pod.logs(100, train__loss=0.5, lr=0.1)
    pod.logs(100, test__accuracy=0.75)
    pod.prints("step=3 loss=1")
    rows = pod.look()[2:]
    assert [(row["kind"], row["step"], row["source"]) for row in rows] == [
        ("train", 100, "TensorBoard"), ("test", 100, "TensorBoard"),
    ]  # fmt: skip
    assert (rows[0]["loss"], rows[0]["learningRate"]) == pytest.approx((0.5, 0.1))
    told = pod.curves.progress()
    assert (told["step"], told["source"], told["accuracy"]) == (100, "TensorBoard", 0.75)
    pod.prints("step=4 loss=1")
    assert len(pod.look()) == 4


def test_event_files_of_dtj_itself_are_no_rows(tmp_path: Path) -> None:
    """Programs of dtj's images work in the workspace, in which dtj writes the utilisation."""
    pod = Pod(tmp_path)
    events = tensorboard.ScalarWriter(pod.utilisation / contract.TENSORBOARD, rotate_seconds=60)
    events.add(5, {"utilisation/cpu_cores/rank-0": 0.5})
    pod.prints("epoch 1: loss 0.5", "epoch 2: loss 0.4")
    assert {row["source"] for row in pod.look()} == {"Output"}
    assert (pod.curves.progress()["epoch"], pod.curves.progress()["source"]) == (2, "Output")


def test_events_of_earlier_attempts_are_no_rows(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.logs(5, at=time.time() - 100, loss=1.0)
    pod.logs(6, loss=1.0)
    old = pod.events / "events.out.tfevents.0"
    old.write_bytes(tensorboard.scalars(time.time(), 9, {"loss": 1.0}))
    os.utime(old, (0, 0))
    assert [row["step"] for row in pod.look()] == [6]


def test_a_pipe_with_the_name_of_an_event_file_holds_up_nothing(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.logs(1, loss=1.0)
    assert len(pod.look()) == 1
    pipe = pod.events / "events.out.tfevents.2"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="seek"):
        EventFile(pipe).more()
    pod.logs(2, loss=1.0)
    assert len(pod.look()) == 2


def test_a_look_that_hangs_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves_module, "LOOK_SECONDS", 0.05)
    pod, release = Pod(tmp_path), threading.Event()
    monkeypatch.setattr(pod.curves._log, "lines", lambda: release.wait(60) and [])
    pod.curves.look_last()
    assert not release.is_set()
    release.set()


def test_output_that_contradicts_itself_is_alive_and_never_trusted(tmp_path: Path) -> None:
    """So a stall is found only when it is silent, and restarts no job."""
    pod = Pod(tmp_path, "trusted")
    pod.prints(*[f"step={step} loss=1" for step in (1, 900, 3, 901, 4)])
    pod.look()
    told = pod.curves.progress()
    assert told.pop("updatedTime")
    assert told == {"source": "Output"}


def test_a_download_is_no_step_once_the_training_begins(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.prints(*[f"{n}%|███| {n}/100 [00:0{n // 25}<00:01, 25.0it/s]" for n in (25, 50, 100)])
    pod.look()
    assert pod.curves.progress()["step"] == 100
    pod.prints("step 5/50: loss 0.5", "step 6/50: loss 0.5")
    pod.look()
    told = pod.curves.progress()
    assert (told["step"], told["totalSteps"], told["percent"]) == (6, 50, 12.0)


def test_what_the_program_reports_counts_more(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.logs(1, loss=1.0)
    pod.look()
    reporter = progress.Reporter(pod.report)
    reporter.report(step=10, loss=0.5, values={"lr": 0.25, "val/f1": 0.5, "bad": float("inf")}, final=True)
    pod.logs(2, loss=0.9)
    rows = pod.look()[1:]
    assert [(row["kind"], row["step"], row["source"]) for row in rows] == [
        ("train", 10, "Report"), ("validation", 10, "Report"),
    ]  # fmt: skip
    assert (rows[0]["loss"], rows[0]["learningRate"], rows[1]["f1"]) == (0.5, 0.25, 0.5)
    assert len(pod.look()) == 3, "a step is told once"


def test_a_program_that_writes_its_rows_is_left_alone(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.prints("step=1 loss=1", "step=2 loss=1")
    pod.look()
    with pod.metrics.open("a") as file:
        file.write('{"kind": "train", "step": 30, "loss": 0.5}\n{"kind": "test", "step": 31}\nno row\n')
    pod.prints("step=3 loss=1")
    pod.logs(1, loss=1.0)
    progress.Reporter(pod.report).report(epoch=1, final=True)
    pod.curves.look()
    assert pod.metrics.read_text().count("\n") == 5
    told = pod.curves.progress()
    assert (told["step"], told["loss"], told["source"]) == (30, 0.5, "Program")


def test_rows_of_an_earlier_attempt_stay_and_are_not_the_program_s(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 30, "attempt": 1}\n')
    pod = Pod(tmp_path, attempt=2)
    pod.prints("step=31 loss=1", "step=32 loss=1")
    assert [row["attempt"] for row in pod.look()] == [1, 2, 2]


@pytest.mark.bound(
    "agent",
    "A program, by what it prints or logs to TensorBoard",
    "Rows of metrics.jsonl that dtj writes",
    "Four rows of training a second",
)
def test_a_flood_makes_few_rows_and_the_last_is_among_them(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    for number in range(5000):
        pod.logs(number, loss=1.0)
    rows = pod.look()
    assert len(rows) == curves_module.MOST_ROWS
    assert rows[-1]["step"] == 4999
    pod = Pod(tmp_path / "x") if (tmp_path / "x").mkdir() is None else pod
    pod.prints(*[f"step={number} loss=1" for number in range(100_000)])
    assert pod.look()[-1]["step"] == 99_999
    assert len(pod.look()) == curves_module.MOST_ROWS


def test_a_rotated_log_is_read_on(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.prints("step=1 loss=1", "step=2 loss=1")
    pod.look()
    pod.log.rename(tmp_path / "rank-0.log.1")
    pod.prints("step=3 loss=1")
    assert pod.look()[-1]["step"] == 3


def test_the_rows_of_a_full_disk_are_lost_and_the_progress_is_not(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.curves._metrics = tmp_path / "missing" / "metrics.jsonl"
    pod.prints("step=1 loss=1", "step=2 loss=1")
    pod.curves.look()
    assert pod.curves.progress()["step"] == 2


# --- event files ---------------------------------------------------------------------------------------


def test_a_file_is_read_as_its_records_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    first, second = (tensorboard.scalars(10.0 + n, n, {"loss": 1.5}) for n in (1, 2))
    path.write_bytes(tensorboard.file_version(9.0) + first + second[:-3])
    file = EventFile(path)
    assert file.more() == [Scalar("loss", 1, 11.0, 1.5)]
    assert file.more() == []
    with path.open("ab") as more:
        more.write(second[-3:])
    assert file.more() == [Scalar("loss", 2, 12.0, 1.5)]


def test_a_large_record_is_passed_over_and_a_damaged_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    picture = (6 << 20).to_bytes(8, "little") + bytes(4) + bytes(6 << 20) + bytes(4)
    good = tensorboard.scalars(10.0, 7, {"loss": 1.5})
    path.write_bytes(picture + good + (1 << 60).to_bytes(8, "little") + bytes(100))
    file = EventFile(path)
    assert file.more() == []
    assert [one.step for one in file.more()] == [7]
    assert file.more() == []


def test_damaged_events_are_none() -> None:
    whole = tensorboard.scalars(10.0, 7, {"loss": 1.5})[12:-4]
    for end in range(len(whole)):
        scalars_of(whole[:end])
        scalars_of(whole[:end] + bytes([whole[end] ^ 0xFF]) + whole[end + 1 :])


@pytest.mark.torch
def test_what_summary_writer_writes(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("Loss/train", 0.5, 3)
        writer.add_scalars("both", {"a": 1.0}, 4)
        writer.add_text("text", "loss 5")
        writer.add_histogram("h", __import__("torch").zeros(9), 3)
    (path,) = tmp_path.glob("*tfevents*")
    assert [(one.tag, one.step, one.value) for one in EventFile(path).more()] == [("Loss/train", 3, 0.5)]


def test_what_tensorflow_s_summaries_are() -> None:
    """A value of tf.summary.scalar is a tensor with `tensor_content`; of Keras' callback as well."""
    found = EventFile(Path(__file__).parent / "outputs/tf-summary.tfevents.v2").more()
    assert [(one.tag, one.step) for one in found] == [("loss", step) for step in range(5)]
    assert found[0].value == 25.0
