"""Files uploaded while they grow: when each is due."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from dtj_trainer.artifacts import sync_loop
from dtj_trainer.artifacts.backoff import Backoff, retry_transient
from dtj_trainer.artifacts.file_upload import (
    LOG,
    METRICS,
    MODEL,
    ONCE,
    TENSORBOARD,
    FileUploader,
    Rule,
    Source,
)
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.sync_loop import SyncLoop


class FakeStore:
    """Remembers what was put."""

    def __init__(self) -> None:
        self.puts: list[tuple[str, bytes]] = []

    def put_file(self, key: str, path: Path, *_: object, **__: object) -> None:
        self.puts.append((key, path.read_bytes()))

    def put_start_of_file(self, key: str, path: Path, size: int, *_: object, **__: object) -> None:
        self.puts.append((key, path.read_bytes()[:size]))


class Clock:
    """Stands for both clocks of the module under test."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now

    monotonic = time_now = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("dtj_trainer.artifacts.file_upload.time", made)
    return made


def running(uploader: FileUploader) -> bool:
    return uploader.upload_pass(ended=False, died_ns=None)


def test_growing_log_is_sent_at_most_each_interval(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "log"
    uploader = FileUploader(store, [Source(path, "logs/x", LOG)])
    assert running(uploader)  # There is no file yet.
    path.write_text("1")
    running(uploader)
    assert store.puts == [("logs/x", b"1")]
    path.write_text("12")
    clock.now += LOG.interval - 1
    assert not running(uploader)
    clock.now += 2
    assert running(uploader)
    assert store.puts[1:] == [("logs/x", b"12")]
    clock.now += 100
    running(uploader)
    assert len(store.puts) == 2
    path.write_text("123")
    assert uploader.upload_pass(ended=True, died_ns=None)  # The end does not wait.
    assert store.puts[2:] == [("logs/x", b"123")]


def test_a_log_that_is_still_empty_does_not_hold_up_its_first_lines(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "log"
    uploader = FileUploader(store, [Source(path, "logs/x", LOG)])
    path.touch()
    assert running(uploader)
    path.write_text("1")
    running(uploader)
    assert store.puts == [("logs/x", b"1")]


def test_finished_tensorboard_parts_go_once_and_the_growing_one_seldom(tmp_path, clock):
    store = FakeStore()
    uploader = FileUploader(store, [Source(tmp_path / "tb", "tensorboard", TENSORBOARD)])
    (tmp_path / "tb" / "run").mkdir(parents=True)
    first, second = tmp_path / "tb" / "run" / "events.1", tmp_path / "tb" / "run" / "events.2"
    first.write_text("a")
    running(uploader)
    assert store.puts == []
    second.write_text("b")
    os.utime(second, (clock.now + 1, clock.now + 1))
    clock.now += 10
    running(uploader)
    assert store.puts == [("tensorboard/run/events.1", b"a")]
    clock.now += TENSORBOARD.interval + 1
    running(uploader)
    assert store.puts[1:] == [("tensorboard/run/events.2", b"b")]
    clock.now += 1000
    running(uploader)
    assert len(store.puts) == 2


def test_model_waits_until_it_is_whole(tmp_path, clock):
    store = FakeStore()
    uploader = FileUploader(store, [Source(tmp_path / "model", "model", MODEL)])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.pt").write_text("a")
    (tmp_path / "model" / ".b.pt").write_text("hidden")
    (tmp_path / "model" / "c.pt.tmp").write_text("temporary")
    assert not running(uploader)
    clock.now += MODEL.quiet + 1
    assert running(uploader)
    assert store.puts == [("model/a.pt", b"a")]
    assert uploader.uploaded_below("model")
    assert not uploader.uploaded_below("tensorboard")


def test_model_cut_off_by_a_kill_is_not_sent(tmp_path):
    store = FakeStore()
    uploader = FileUploader(store, [Source(tmp_path / "model", "model", MODEL)])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.pt").write_text("ha")
    assert uploader.upload_pass(ended=False, died_ns=time.time_ns())
    assert store.puts == []


def test_once_is_once(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "job.yaml"
    path.write_text("1")
    uploader = FileUploader(store, [Source(path, "job.yaml", ONCE)])
    running(uploader)
    path.write_text("2")
    clock.now += 1000
    assert running(uploader)
    assert store.puts == [("job.yaml", b"1")]


def test_costly_upload_rests_longer(tmp_path, clock):
    class SlowStore(FakeStore):
        def put_start_of_file(self, key: str, path: Path, size: int, *_: object, **__: object) -> None:
            clock.now += 20
            super().put_start_of_file(key, path, size)

    store, path = SlowStore(), tmp_path / "metrics"
    uploader = FileUploader(store, [Source(path, "metrics", METRICS)])
    path.write_text("1")
    running(uploader)
    path.write_text("12")
    clock.now += 100
    running(uploader)
    assert len(store.puts) == 1
    clock.now += 101
    running(uploader)
    assert len(store.puts) == 2


def test_file_that_changes_while_it_is_sent_is_sent_again(tmp_path):
    class Meddler(FakeStore):
        def put_file(self, key: str, path: Path, *_: object, **__: object) -> None:
            super().put_file(key, path)
            if len(self.puts) == 1:
                path.write_text("changed")

    store = Meddler()
    (tmp_path / "m").write_text("m")
    uploader = FileUploader(store, [Source(tmp_path / "m", "m", Rule())])
    assert not uploader.upload_pass(ended=True, died_ns=None)
    assert uploader.upload_pass(ended=True, died_ns=None)
    assert store.puts[-1] == ("m", b"changed")


def test_backoff_grows_and_is_bounded():
    backoff = Backoff(longest=4)
    delays = [backoff.next_delay() for _ in range(40)]
    assert 0.25 <= delays[0] <= 0.5
    assert max(delays) <= 4
    assert min(delays[4:]) >= 2
    backoff.reset()
    assert backoff.next_delay() <= 0.5


def test_retry_gives_up_in_time_and_at_once_when_it_is_no_use():
    calls: list[float] = []

    def down() -> None:
        calls.append(1)
        raise S3Error("down", transient=True)

    with pytest.raises(S3Error, match="down"):
        retry_transient(down, timeout=0.0, on_wait=lambda *_: None, sleep=lambda _: None)
    assert len(calls) == 1

    def refused() -> None:
        calls.append(1)
        raise S3Error("refused", transient=False)

    with pytest.raises(S3Error, match="refused"):
        retry_transient(refused, timeout=100, on_wait=lambda *_: None, sleep=calls.append)
    assert len(calls) == 2


# --- one key that the store refuses ----------------------------------------------------------------


class Refusing(FakeStore):
    """Refuses the keys that begin so."""

    def __init__(self, start: str, *, transient: bool = False) -> None:
        super().__init__()
        self.start = start
        self.transient = transient
        self.refused = 0

    def put_file(self, key: str, path: Path, *more: object, **conditions: object) -> None:
        self._check(key)
        super().put_file(key, path)

    def put_start_of_file(self, key: str, path: Path, size: int, *_: object, **__: object) -> None:
        self._check(key)
        super().put_start_of_file(key, path, size)

    def _check(self, key: str) -> None:
        if key.startswith(self.start):
            self.refused += 1
            raise S3Error(f"{key}: AccessDenied", transient=self.transient)


def two_logs_and_a_model(folder: Path, store: FakeStore) -> FileUploader:
    (folder / "logs").mkdir()
    (folder / "model").mkdir()
    for name in ("logs/a.log", "logs/b.log", "model/m.pt"):
        (folder / name).write_text("x\n")
    sources = [Source(folder / "logs", "logs", LOG), Source(folder / "model", "model", MODEL)]
    return FileUploader(store, sources)


def test_a_refused_key_keeps_no_other_file_from_its_upload(tmp_path):
    store = Refusing("logs/a")
    uploader = two_logs_and_a_model(tmp_path, store)
    with pytest.raises(S3Error, match="AccessDenied"):
        uploader.upload_pass(ended=True, died_ns=None)
    assert {key for key, _ in store.puts} == {"logs/b.log", "model/m.pt"}


def test_a_bucket_that_is_away_costs_one_timeout_for_each_source(tmp_path):
    store = Refusing("", transient=True)
    uploader = two_logs_and_a_model(tmp_path, store)
    with pytest.raises(S3Error):
        uploader.upload_pass(ended=True, died_ns=None)
    assert store.refused == 2


def test_the_end_waits_for_a_whole_pass_where_a_key_was_refused_long_before(monkeypatch):
    monkeypatch.setattr(sync_loop, "LASTING_SECONDS", 0.0)
    refused, go_on, uploaded = threading.Event(), threading.Event(), threading.Event()

    def upload(*, ended: bool, died_ns: int | None) -> bool:
        if ended:
            assert go_on.wait(60)
            uploaded.set()
        refused.set()
        raise S3Error("logs/a.log: AccessDenied", transient=False)

    loop = SyncLoop("uploading files", upload, interval=0.0)
    loop.start()
    assert refused.wait(60)
    while not loop.failures:
        pass

    def seconds_left() -> float:
        go_on.set()  # Only now: `wait` has begun.
        return 60.0

    with pytest.raises(S3Error, match="AccessDenied"):
        loop.wait(loop.ask(ended=True), seconds_left)
    assert uploaded.is_set()
