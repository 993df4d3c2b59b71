"""The last sync: every loop is asked, and a bucket that takes bytes is waited for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dtj_trainer.artifacts import sync_loop
from dtj_trainer.artifacts.pod_sync import PodSync, SyncSettings
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.sync_loop import Patience, SyncLoop


def test_patience_begins_anew_with_each_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sent = [0.0], [5]
    monkeypatch.setattr(sync_loop.time, "monotonic", lambda: now[0])
    patience, strict = Patience(10, lambda: sent[0]), Patience(10, None)
    now[0], sent[0] = 8.0, 6
    assert (patience.left(), strict.left()) == (10, 2)
    now[0], sent[0] = 15.0, 4  # a part is sent again
    assert patience.left() == 3


def test_an_error_of_one_upload_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_loop, "LASTING_SECONDS", 0.0)
    failed, arrived = threading.Event(), threading.Event()

    def files(*, ended: bool, died_ns: int | None) -> bool:
        failed.set()
        raise S3Error("no", transient=False)

    def checkpoints(*, ended: bool, died_ns: int | None) -> bool:
        if ended and failed.wait(10):
            arrived.set()
        return ended

    settings = SyncSettings(tmp_path, tmp_path, None, "primary", 1, "Auto", 3, 1.0)
    sync = PodSync(settings, lambda _: None)
    sync._loops = [SyncLoop("files", files), SyncLoop("checkpoints", checkpoints)]
    for loop in sync._loops:
        loop.start()
    with pytest.raises(S3Error, match="no"):
        sync.finish(20, ended=True)
    assert arrived.is_set()
