"""The deadline of a pod that is told to stop, and what must end by then."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.trainer.conftest import until

from dtj_trainer import contract
from dtj_trainer.artifacts.history import HistoryWriter
from dtj_trainer.artifacts.s3 import Deadline, S3Error
from dtj_trainer.artifacts.sync import PodSync, SyncSettings
from dtj_trainer.artifacts.sync_loop import REPEATS, SyncLoop
from dtj_trainer.launch import pod as grace_module
from dtj_trainer.launch.pod import EXIT_SECONDS, REPORT_SECONDS, Grace, stop_sync_seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(grace_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_the_grace_counts_from_the_first_signal(clock: list[float]) -> None:
    passed_on: list[int] = []
    begun: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: passed_on.append(number))
    grace = Grace()
    grace.watch(begun.append)
    assert not grace.begun
    assert grace.left() == grace.left_to_upload() == math.inf
    os.kill(os.getpid(), signal.SIGTERM)
    clock[0] += 30
    os.kill(os.getpid(), signal.SIGINT)
    assert passed_on == [signal.SIGTERM, signal.SIGINT]
    assert begun == [signal.SIGTERM]
    assert grace.left() == contract.TERMINATION_GRACE_SECONDS - EXIT_SECONDS - 30
    assert grace.left_to_upload() == contract.TERMINATION_GRACE_SECONDS - REPORT_SECONDS - 30


def test_a_program_that_ends_early_leaves_its_time_to_the_upload(clock: list[float]) -> None:
    grace = Grace()
    ordinary = stop_sync_seconds(600, grace)
    assert stop_sync_seconds(2, grace) == 2
    assert contract.STOP_SECONDS + ordinary <= contract.TERMINATION_GRACE_SECONDS - REPORT_SECONDS
    grace.begin()
    assert stop_sync_seconds(2, grace) == 2
    clock[0] += 1
    assert stop_sync_seconds(600, grace) == contract.TERMINATION_GRACE_SECONDS - REPORT_SECONDS - 1
    clock[0] += contract.STOP_SECONDS - 1
    assert stop_sync_seconds(600, grace) == ordinary


def test_progress_does_not_move_the_end_of_the_grace() -> None:
    left, sent = [5.0], [0]
    deadline = Deadline(600, lambda: sent[0], lambda: left[0])
    left[0], sent[0] = 2.0, 1
    assert deadline.left() == 2


def test_the_grace_ends_an_upload_that_makes_progress(tmp_path: Path) -> None:
    sync = PodSync(SyncSettings(tmp_path, tmp_path, None, "primary", 1, "Auto", 3, 1.0), lambda _: None)
    sent = [0]

    def uploads(*, ended: bool, died_ns: int | None) -> bool:
        while True:
            sent[0] += 1
            time.sleep(0.01)

    sync._loops = [SyncLoop("uploading", uploads, sent=lambda: sent[0])]
    sync._loops[0].start()
    ends = time.monotonic() + 1
    with pytest.raises(S3Error, match="uploading took too long"):
        sync.finish(600 * PATIENCE, ended=True, until=lambda: ends - time.monotonic())
    assert sent[0] > 1


def test_bytes_that_are_sent_again_are_no_progress(tmp_path: Path) -> None:
    sync = PodSync(SyncSettings(tmp_path, tmp_path, None, "primary", 1, "Auto", 3, 1.0), lambda _: None)
    sent, passes = [0], [0]

    def uploads(*, ended: bool, died_ns: int | None) -> bool:
        """A file changes during each pass."""
        sent[0] += 100
        passes[0] += 1
        return False

    loop = SyncLoop("uploading", uploads, 0.01, sent=lambda: sent[0])
    sync._loops = [loop]
    loop.start()
    with pytest.raises(S3Error, match="uploading took too long"):
        sync.finish(0.5, ended=True)
    assert passes[0] > REPEATS
    until(lambda: loop.progress < sent[0], "bytes that do not count")


def test_what_a_failed_pass_sent_is_progress(tmp_path: Path) -> None:
    """The passes resume an upload: each sends other bytes."""
    sync = PodSync(SyncSettings(tmp_path, tmp_path, None, "primary", 1, "Auto", 3, 1.0), lambda _: None)
    sent = [0]

    def uploads(*, ended: bool, died_ns: int | None) -> bool:
        sent[0] += 100
        if ended and sent[0] >= 1000:
            return True
        raise S3Error("cut off", transient=True)

    sync._loops = [SyncLoop("uploading", uploads, 0.01, sent=lambda: sent[0])]
    sync._loops[0].start()
    sync.finish(3 * PATIENCE, ended=True)
    assert sync._loops[0].progress == sent[0] == 1000


def test_a_silent_store_holds_up_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def hangs(*_: object) -> bool:
        asked.set()
        return threading.Event().wait()

    monkeypatch.setattr(HistoryWriter, "_end", hangs)
    writer = HistoryWriter(None, None)  # type: ignore[arg-type]  # never used
    assert writer.end("chief-0", 1, {}, None, 0.2) is False
    assert asked.is_set()
