"""The upload of files while a program runs: when each file is due, and in which pieces.

* growing logs
* segments, event files and rotated logs
* whole files: models, uploads that are interrupted, backoff
* keys that the store refuses, and a bucket that is away
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dtj_trainer.artifacts import growing, model_manifest, segments, sync_loop, upload_rules
from dtj_trainer.artifacts.file_upload import FileUploader
from dtj_trainer.artifacts.growing import QUIET_SECONDS
from dtj_trainer.artifacts.manifest import sha256_of
from dtj_trainer.artifacts.multipart import Uploaded, Uploads
from dtj_trainer.artifacts.s3 import Backoff, RefusedKey, S3Error, retry_transient
from dtj_trainer.artifacts.segments import (
    SEGMENT_BYTES,
    SEGMENT_SECONDS,
    rotated,
    rotated_numbers,
    segments_of,
)
from dtj_trainer.artifacts.store import StoredObject
from dtj_trainer.artifacts.sync_loop import SyncLoop
from dtj_trainer.artifacts.upload_rules import (
    EVENTS,
    LOG,
    METRICS,
    MODEL,
    MOST_FILES,
    ONCE,
    Begin,
    RefusedFiles,
    Rule,
    UploadSource,
    is_event_file,
)
from dtj_trainer.serving.places import read_manifest


class FakeStore:
    """Remembers what was put."""

    def __init__(self) -> None:
        self.puts: list[tuple[str, bytes]] = []
        self.uploads = Uploads()

    @property
    def objects(self) -> dict[str, bytes]:
        return dict(self.puts)

    def put_file(self, key: str, path: Path, *_: object, **__: object) -> None:
        self.puts.append((key, path.read_bytes()))

    def put_whole(self, key: str, path: Path, *_: object, **__: object) -> Uploaded:
        sha256 = sha256_of(path)
        self.put_file(key, path)
        return Uploaded("etag", sha256)

    def put_bytes(self, key: str, content: bytes, **_: object) -> str:
        self.puts.append((key, content))
        return f"etag {len(self.puts)}"

    def named(self, start: str) -> Iterator[StoredObject]:
        for key, content in sorted(self.objects.items()):
            if key.startswith(start):
                yield StoredObject(key, len(content), "etag")

    def joined(self, key: str) -> bytes:
        objects = self.objects
        return b"".join(objects[part.key] for part in segments_of(key, objects))


class Clock:
    """Both clocks, in hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = time


@pytest.fixture
def clock() -> Clock:
    return Clock()


def running(uploader: FileUploader) -> bool:
    return uploader.upload_pass(ended=False, died_ns=None)


def ended(uploader: FileUploader) -> bool:
    return uploader.upload_pass(ended=True, died_ns=None)


def append(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(content)


@pytest.mark.bound(
    "agent",
    "A program that logs without pause",
    "Puts of a log",
    "One an interval",
)
def test_growing_log_is_sent_at_most_each_interval(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "log"
    uploader = FileUploader(store, [UploadSource(path, "logs/x", LOG)], clock)
    assert running(uploader)  # There is no file yet.
    append(path, b"1\n")
    running(uploader)
    assert store.puts == [("logs/x", b"1\n")]
    append(path, b"2\n")
    clock.now += LOG.interval - 1
    assert not running(uploader)
    clock.now += 2
    assert running(uploader)
    assert store.puts[1:] == [("logs/x", b"1\n2\n")]
    clock.now += 100
    running(uploader)
    assert len(store.puts) == 2
    append(path, b"3")
    assert ended(uploader)  # The end does not wait, nor for the end of a line.
    assert store.puts[2:] == [("logs/x", b"1\n2\n3")]


def test_a_log_that_is_still_empty_does_not_hold_up_its_first_lines(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "log"
    uploader = FileUploader(store, [UploadSource(path, "logs/x", LOG)], clock)
    path.touch()
    assert running(uploader)
    append(path, b"1\n")
    running(uploader)
    assert store.puts == [("logs/x", b"1\n")]


# --- segments --------------------------------------------------------------------------------------


def test_a_full_segment_is_closed_at_the_end_of_a_line_and_never_put_again(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "log"
    uploader = FileUploader(store, [UploadSource(path, "logs/x.log", LOG)], clock)
    line = b"x" * 999 + b"\n"
    for _ in range(30):
        append(path, line * 100)
        running(uploader)
        clock.now += LOG.interval
    assert ended(uploader)
    whole = SEGMENT_BYTES // 1000 * 1000
    sizes = {key: len(content) for key, content in store.objects.items()}
    assert sizes == {
        "logs/x.log": whole,
        "logs/x.log.00002": whole,
        "logs/x.log.00003": 3_000_000 - 2 * whole,
    }
    assert store.joined("logs/x.log") == path.read_bytes()
    closed = [key for key, content in store.puts if len(content) == whole]
    assert closed == ["logs/x.log", "logs/x.log.00002"]
    assert store.puts[-1][0] == "logs/x.log.00003"


def test_a_segment_is_closed_when_it_is_old(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "log"
    uploader = FileUploader(store, [UploadSource(path, "logs/x.log", LOG)], clock)
    append(path, b"1\n")
    running(uploader)
    clock.now += SEGMENT_SECONDS + 1
    append(path, b"2\n3")
    running(uploader)
    append(path, b"\n")
    clock.now += LOG.interval
    running(uploader)
    assert store.objects == {"logs/x.log": b"1\n2\n", "logs/x.log.00002": b"3\n"}


def test_a_line_without_an_end_is_divided_and_all_of_it_is_there(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "log"
    uploader = FileUploader(store, [UploadSource(path, "logs/x.log", LOG)], clock)
    append(path, bytes(range(256)).replace(b"\n", b"") * 9000)
    running(uploader)
    assert ended(uploader)
    assert store.joined("logs/x.log") == path.read_bytes()
    assert max(len(content) for _, content in store.puts) == SEGMENT_BYTES


def test_segments_grow_with_the_file(monkeypatch, tmp_path, clock):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(segments, "MOST_SEGMENT_BYTES", 1600)
    store, path = FakeStore(), tmp_path / "log"
    uploader = FileUploader(store, [UploadSource(path, "logs/x.log", LOG)], clock)
    append(path, b"123456789\n" * 100_000)
    assert ended(uploader)
    assert store.joined("logs/x.log") == path.read_bytes()
    assert len(store.objects) < 1500  # Of 100 bytes they would be 10,000.


def record(content: bytes) -> bytes:
    return struct.pack("<QI", len(content), 0) + content + struct.pack("<I", 0)


def test_an_event_file_is_divided_between_records_however_long(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "tb" / "events.out.tfevents.1.host"
    source = UploadSource(tmp_path / "tb", "tensorboard", EVENTS, takes=is_event_file)
    uploader = FileUploader(store, [source], clock)
    records = [record(b"x" * 100_000) for _ in range(12)] + [record(b"y" * 3 * SEGMENT_BYTES)]
    for each in records:
        append(path, each[:50_000])
        running(uploader)
        append(path, each[50_000:])
        clock.now += EVENTS.interval
        running(uploader)
    assert ended(uploader)
    key = "tensorboard/events.out.tfevents.1.host"
    assert store.joined(key) == path.read_bytes()
    for content in store.objects.values():
        assert segments.whole_records(content) == len(content)
    assert len(store.objects) == 3


@pytest.mark.bound(
    "agent",
    "A program with files that grow",
    "Bytes that are sent again",
    "A rate for all files of a pod together",
)
def test_what_is_put_again_is_bounded_and_who_waits_longest_is_next(monkeypatch, tmp_path, clock):
    at_once = SEGMENT_BYTES
    monkeypatch.setattr(growing, "AGAIN_AT_ONCE_BYTES", at_once)
    store = FakeStore()
    sources = [UploadSource(tmp_path / name, name, METRICS) for name in ("a", "b", "c")]
    uploader = FileUploader(store, sources, clock)
    line = b"x" * 9_999 + b"\n"
    begun = clock.now
    while clock.now - begun < 40_000:  # 1 kB/s each.
        clock.now += 10
        for source in sources:
            append(source.path, line)
        running(uploader)
    assert ended(uploader)
    written = sum(source.path.stat().st_size for source in sources)
    assert all(store.joined(source.key) == source.path.read_bytes() for source in sources)
    sent = sum(len(content) for _, content in store.puts)
    assert uploader.bytes_uploaded == sent
    assert sent <= 1.1 * written + at_once + 1000 * 40_000 + 3 * SEGMENT_BYTES
    shares = [sum(key.startswith(source.key) for key, _ in store.puts) for source in sources]
    assert min(shares) > 0.8 * max(shares)


def test_a_file_that_was_begun_anew_replaces_the_open_segment(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "log"
    uploader = FileUploader(store, [UploadSource(path, "logs/x", LOG)], clock)
    append(path, b"line of the first one\n" * 100)
    running(uploader)
    for text in (b"short\n", b"longer than that\n"):
        path.unlink()
        append(path, text)
        clock.now += LOG.interval
        running(uploader)
        assert store.objects == {"logs/x": text}


def test_a_pod_of_the_same_attempt_goes_on_behind_the_log_that_is_there(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "log"
    store.puts = [("logs/x.log", b"1\n"), ("logs/x.log.00002", b"2\n"), ("logs/x.log-more", b"no\n")]
    append(path, b"3\n")
    assert ended(FileUploader(store, [UploadSource(path, "logs/x.log", LOG)], clock))
    assert store.joined("logs/x.log") == b"1\n2\n3\n"


def test_a_retry_goes_on_in_the_open_segment(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "metrics"
    store.puts = [("m", b"1\n"), ("m.00002", b"2\n")]
    append(path, b"1\n2\n")
    begin = Begin(number=2, at=2, sent=4, mark=b"1\n2\n")
    uploader = FileUploader(store, [UploadSource(path, "m", METRICS, begin=begin)], clock)
    assert ended(uploader)
    assert len(store.puts) == 2  # All of that is there.
    append(path, b"3\n")
    assert ended(uploader)
    assert store.puts[2:] == [("m.00002", b"2\n3\n")]


def test_files_that_are_quiet_are_seldom_looked_at_and_go_on_where_they_were(tmp_path, clock, monkeypatch):
    store, folder = FakeStore(), tmp_path / "tb"
    uploader = FileUploader(store, [UploadSource(folder, "tensorboard", EVENTS, takes=is_event_file)], clock)
    for number in range(120):
        append(folder / f"events.out.tfevents.{number:03d}", record(b"1"))
    looks: list[Path] = []
    stat = Path.stat

    def counted(path: Path, **options: object) -> object:
        if "tfevents" in path.name:
            looks.append(path)
        return stat(path, **options)

    running(uploader)
    clock.now += QUIET_SECONDS
    running(uploader)
    monkeypatch.setattr(Path, "stat", counted)
    for _ in range(60):
        clock.now += 1
        before = len(looks)
        running(uploader)
        assert len(looks) - before == 2
    assert len(set(looks)) == 120
    append(folder / "events.out.tfevents.007", record(b"2"))
    for _ in range(60):
        clock.now += 1
        running(uploader)
    assert store.objects["tensorboard/events.out.tfevents.007"] == record(b"1") + record(b"2")
    assert len(store.puts) == 121


def test_a_new_event_file_comes_after_the_rest_of_the_files_that_it_continues(tmp_path, clock):
    """TensorBoard drops the events of a newer file when an older file grows afterwards."""
    store, folder = FakeStore(), tmp_path / "tb"
    uploader = FileUploader(store, [UploadSource(folder, "tensorboard", EVENTS, takes=is_event_file)], clock)
    parts = [folder / f"events.out.tfevents.{number}.host" for number in range(4)]
    keys = [f"tensorboard/{part.name}" for part in parts]
    append(parts[0], record(b"1"))
    running(uploader)
    clock.now += QUIET_SECONDS
    running(uploader)
    append(folder / "eval" / parts[0].name, record(b"e"))
    append(parts[0], record(b"2"))  # The file is quiet, so that few passes look at it.
    append(parts[1], record(b"3"))
    running(uploader)
    assert [put for put in store.puts[1:] if put[0] in keys] == [
        (keys[0], record(b"1") + record(b"2")),
        (keys[1], record(b"3")),
    ]
    store.puts.clear()
    append(folder / "eval" / parts[0].name, record(b"e"))
    append(parts[1], record(b"4"))
    append(parts[2], record(b"5"))
    clock.now += 1  # Less than the interval.
    running(uploader)
    assert store.puts == [(keys[1], record(b"3") + record(b"4")), (keys[2], record(b"5"))]
    store.puts.clear()
    append(parts[2], record(b"6"))
    append(parts[3], record(b"7"))
    assert ended(uploader)
    assert [put for put in store.puts if put[0] in keys] == [
        (keys[2], record(b"5") + record(b"6")),
        (keys[3], record(b"7")),
    ]


# --- rotated logs ----------------------------------------------------------------------------------


def rotate(path: Path) -> None:
    path.rename(rotated(path, max(rotated_numbers(path), default=0) + 1))


def test_a_log_goes_on_over_its_rotated_files_which_are_removed_once_uploaded(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "logs" / "x.log"
    uploader = FileUploader(store, [UploadSource(path.parent, "logs", LOG)], clock)
    append(path, b"1\n")
    running(uploader)
    append(path, b"2\n")
    rotate(path)
    append(path, b"3\n")
    rotate(path)
    append(path, b"4\n")
    clock.now += LOG.interval
    running(uploader)
    assert store.joined("logs/x.log") == b"1\n2\n3\n4\n"
    assert rotated_numbers(path) == [2]
    rotate(path)
    assert ended(uploader)  # Nothing was written after that.
    assert store.joined("logs/x.log") == b"1\n2\n3\n4\n"
    assert rotated_numbers(path) == [3]


def test_rotated_files_stay_while_the_bucket_does_not_take_them(tmp_path, clock):
    store, path = Refusing("logs/x", transient=True), tmp_path / "x.log"
    uploader = FileUploader(store, [UploadSource(path, "logs/x.log", LOG)], clock)
    for number in range(5):
        append(path, b"%d\n" % number)
        with pytest.raises(S3Error):
            running(uploader)
        rotate(path)
    append(path, b"5\n")
    store.start = "nothing"
    assert ended(uploader)
    assert store.joined("logs/x.log") == b"0\n1\n2\n3\n4\n5\n"
    assert rotated_numbers(path) == [5 - segments.KEPT_ROTATED + 1]


def test_a_rotated_file_that_was_removed_unseen_costs_only_itself(tmp_path, clock, caplog):
    store, path = FakeStore(), tmp_path / "x.log"
    uploader = FileUploader(store, [UploadSource(path, "logs/x.log", LOG)], clock)
    append(path, b"1\n")
    running(uploader)
    append(path, b"lost\n")
    rotate(path)
    append(path, b"2\n")
    rotate(path)
    append(path, b"3\n")
    rotated(path, 1).unlink()
    assert ended(uploader)
    assert store.joined("logs/x.log") == b"1\n2\n3\n"
    assert "removed before it could be uploaded" in caplog.text


# --- whole files -----------------------------------------------------------------------------------


def test_model_waits_until_it_is_whole(tmp_path, clock):
    store = FakeStore()
    clock.now = time.time()
    uploader = FileUploader(store, [UploadSource(tmp_path / "model", "model", MODEL)], clock)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.pt").write_text("a")
    (tmp_path / "model" / ".b.pt").write_text("hidden")
    (tmp_path / "model" / "c.pt.tmp").write_text("temporary")
    assert not running(uploader)
    clock.now += MODEL.quiet + 1
    assert running(uploader)
    assert [key for key, _ in store.puts] == ["model/a.pt", "model/manifest.json"]
    assert store.puts[0][1] == b"a"
    assert uploader.uploaded_below("model")
    assert not uploader.uploaded_below("tensorboard")


def named_in(store: FakeStore) -> dict[str, str]:
    """What the manifest in the bucket says: the checksum of each file."""
    files = read_manifest(store.objects["model/manifest.json"]).files
    return {file.path: file.sha256 for file in files}


def test_the_manifest_of_a_model_is_put_last_and_names_what_is_in_the_bucket(tmp_path, clock):
    store, folder = FakeStore(), tmp_path / "model"
    clock.now = time.time()
    uploader = FileUploader(store, [UploadSource(folder, "model", MODEL)], clock)
    (folder / "saved").mkdir(parents=True)
    assert running(uploader)  # Without a file there is no manifest.
    for name in ("a.pt", "saved/b"):
        (folder / name).write_text(name)
    (folder / "manifest.json").write_text("of the program")
    clock.now += MODEL.quiet + 1
    assert running(uploader)
    assert [key for key, _ in store.puts] == ["model/a.pt", "model/saved/b", "model/manifest.json"]
    assert named_in(store) == {name: sha256_of(folder / name) for name in ("a.pt", "saved/b")}
    clock.now += 1000
    assert running(uploader)
    assert len(store.puts) == 3  # A manifest that says the same is not put again.

    (folder / "a.pt").write_text("another")
    clock.now = time.time()
    before = named_in(store)
    assert not running(uploader)  # The file is not quiet yet, and the manifest waits for it.
    assert named_in(store) == before
    (folder / "saved/b").unlink()
    assert ended(uploader)
    assert [key for key, _ in store.puts[3:]] == ["model/a.pt", "model/manifest.json"]
    assert named_in(store) == {"a.pt": sha256_of(folder / "a.pt")}


def test_the_files_of_a_model_are_read_once_for_the_upload_and_its_manifest(tmp_path, clock, monkeypatch):
    """A model may have gigabytes: the checksums are those of what was sent."""
    monkeypatch.setattr(model_manifest, "sha256_of", lambda _: pytest.fail("read again"))
    folder, clock.now = tmp_path / "model", time.time() + MODEL.quiet + 1
    folder.mkdir()
    (folder / "a.pt").write_text("a")
    store = FakeStore()
    assert ended(FileUploader(store, [UploadSource(folder, "model", MODEL)], clock))
    assert named_in(store) == {"a.pt": sha256_of(folder / "a.pt")}


def test_a_model_of_which_a_file_is_refused_or_cut_off_gets_no_manifest(tmp_path, clock):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.pt", "b.pt"):
        (folder / name).write_text(name)
    store = Refusing("model/a")
    uploader = FileUploader(store, [UploadSource(folder, "model", MODEL, essential=True)], clock)
    with pytest.raises(S3Error, match="AccessDenied"):
        ended(uploader)
    assert [key for key, _ in store.puts] == ["model/b.pt"]

    clock.now = time.time() + MODEL.quiet + 1
    store = FakeStore()
    uploader = FileUploader(store, [UploadSource(folder, "model", MODEL)], clock)
    assert running(uploader)
    before = named_in(store)
    (folder / "a.pt").write_text("ha")
    assert uploader.upload_pass(ended=False, died_ns=time.time_ns())
    assert named_in(store) == before


def test_model_cut_off_by_a_kill_is_not_sent(tmp_path):
    store = FakeStore()
    uploader = FileUploader(store, [UploadSource(tmp_path / "model", "model", MODEL)])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.pt").write_text("ha")
    assert uploader.upload_pass(ended=False, died_ns=time.time_ns())
    assert store.puts == []


def test_once_is_once(tmp_path, clock):
    store, path = FakeStore(), tmp_path / "job.yaml"
    path.write_text("1")
    uploader = FileUploader(store, [UploadSource(path, "job.yaml", ONCE)], clock)
    running(uploader)
    path.write_text("2")
    clock.now += 1000
    assert running(uploader)
    assert store.puts == [("job.yaml", b"1")]


def test_costly_upload_rests_longer(tmp_path, clock):
    class SlowStore(FakeStore):
        def put_bytes(self, key: str, content: bytes, **_: object) -> str:
            clock.now += 20
            return super().put_bytes(key, content)

    store, path = SlowStore(), tmp_path / "metrics"
    uploader = FileUploader(store, [UploadSource(path, "metrics", METRICS)], clock)
    append(path, b"1\n")
    running(uploader)
    append(path, b"2\n")
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
    uploader = FileUploader(store, [UploadSource(tmp_path / "m", "m", Rule())])
    assert not uploader.upload_pass(ended=True, died_ns=None)
    assert uploader.upload_pass(ended=True, died_ns=None)
    assert store.puts[-1] == ("m", b"changed")


def test_a_file_that_changes_for_ever_is_taken_as_it_was_after_the_programs_end(tmp_path, caplog):
    class WritesOn(FakeStore):
        def put_file(self, key: str, path: Path, *_: object, **__: object) -> None:
            super().put_file(key, path)
            append(path, b"more")

    (tmp_path / "model.pt").write_bytes(b"weights")
    store = WritesOn()
    uploader = FileUploader(store, [UploadSource(tmp_path, "model", MODEL)])
    passes = [uploader.upload_pass(ended=True, died_ns=None) for _ in range(4)]
    assert passes == [False, False, True, True]
    assert [key for key, _ in store.puts] == ["model/model.pt"] * 3, "sent again, or named by a manifest"
    assert caplog.text.count("model.pt changes although the program has ended") == 1


def test_a_torn_file_is_not_sent_and_its_folder_has_no_manifest(tmp_path, caplog):
    for name in ("torn.pt", "whole.pt"):
        (tmp_path / name).write_bytes(b"weights")
    store = FakeStore()
    uploader = FileUploader(store, [UploadSource(tmp_path, "model", MODEL)])
    uploader.note_torn([tmp_path / "torn.pt"])
    assert ended(uploader)
    assert [key for key, _ in store.puts] == ["model/whole.pt"]


def test_what_was_torn_in_one_round_is_sent_once_the_next_one_has_written_it(tmp_path):
    model = tmp_path / "model.pt"
    model.write_bytes(b"half")
    store = FakeStore()
    rule = replace(MODEL, quiet=0.0, interval=0.0)
    uploader = FileUploader(store, [UploadSource(model, "model", rule)])
    uploader.begin_round(model.stat().st_ctime_ns - 1)
    assert uploader.upload_pass(ended=False, died_ns=None)
    assert store.puts == []
    model.write_bytes(b"weights")
    assert uploader.upload_pass(ended=False, died_ns=None)
    assert "model" in [key for key, _ in store.puts]


def test_what_changed_shortly_before_a_program_ended_by_itself_is_sent_in_the_next_round(tmp_path):
    model = tmp_path / "model.pt"
    model.write_bytes(b"weights")
    store = FakeStore()
    uploader = FileUploader(store, [UploadSource(model, "model", replace(MODEL, quiet=0.0, interval=0.0))])
    uploader.begin_round(None)
    assert uploader.upload_pass(ended=False, died_ns=None)
    assert "model" in [key for key, _ in store.puts]


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

    def put_bytes(self, key: str, content: bytes, **_: object) -> str:
        self._check(key)
        return super().put_bytes(key, content)

    def _check(self, key: str) -> None:
        if key.startswith(self.start):
            self.refused += 1
            why = f"{key}: AccessDenied"
            raise S3Error(why, transient=True) if self.transient else RefusedKey(why)


def two_logs_and_a_model(folder: Path, store: FakeStore, clock: Clock | None = None) -> FileUploader:
    (folder / "logs").mkdir()
    (folder / "model").mkdir()
    for name in ("logs/a.log", "logs/b.log", "model/m.pt"):
        (folder / name).write_text("x\n")
    model = UploadSource(folder / "model", "model", MODEL, essential=True)
    return FileUploader(store, [UploadSource(folder / "logs", "logs", LOG), model], clock or Clock())


def test_a_refused_log_is_told_once_and_keeps_no_other_file_from_its_upload(tmp_path, clock, caplog):
    store = Refusing("logs/a")
    uploader = two_logs_and_a_model(tmp_path, store, clock)
    for _ in range(50):
        running(uploader)
        clock.now += 1
    assert store.refused <= 2, "tried in every pass"
    assert ended(uploader), "no resume needs a log"
    assert {key for key, _ in store.puts} == {"logs/b.log", "model/m.pt", "model/manifest.json"}
    assert uploader.refused.text == "'a.log': logs/a.log: AccessDenied"
    assert caplog.text.count("is not uploaded") == 1
    store.start = "nothing"
    assert ended(uploader)
    assert uploader.refused.text == ""
    assert store.objects["logs/a.log"] == b"x\n"


@pytest.mark.bound(
    "agent",
    "A program whose files the store refuses",
    "Refused files that the agent remembers",
    "1,000",
)
def test_refused_files_that_are_too_many_to_remember_hold_up_no_end(tmp_path, monkeypatch):
    monkeypatch.setattr(upload_rules, "MOST_FILES", 1)
    uploader = two_logs_and_a_model(tmp_path, Refusing("logs/"))
    assert ended(uploader)
    assert uploader.refused.text == "'a.log': logs/a.log: AccessDenied"


def test_a_refused_file_of_the_model_is_an_error_at_the_end_that_names_it(tmp_path, clock):
    store = Refusing("model/m")
    uploader = two_logs_and_a_model(tmp_path, store, clock)
    clock.now += 60
    assert running(uploader), "an error while the program may still write another model"
    assert "model/m.pt: AccessDenied" in uploader.refused.text
    with pytest.raises(S3Error, match=r"model/m.pt' is not uploaded: model/m.pt: AccessDenied") as error:
        uploader.upload_pass(ended=True, died_ns=None)
    assert not error.value.transient
    assert {key for key, _ in store.puts} == {"logs/a.log", "logs/b.log"}


def test_many_refused_files_are_named_in_a_few_words(clock):
    refused = RefusedFiles(clock.monotonic)
    for number in range(MOST_FILES + 5):
        refused.add(Path(f"/{number}"), "denied")
    assert refused.text == f"'0': denied; '1': denied; '2': denied; and {MOST_FILES - 3} more"


class OfText(Refusing):
    """As a real client, which has no other keys."""

    def _check(self, key: str) -> None:
        key.encode()


def test_a_name_that_can_t_be_a_key_has_another_form_in_the_bucket(tmp_path):
    store = OfText("")
    uploader = two_logs_and_a_model(tmp_path, store)
    for name in (b"logs/\xff.log", b"model/\xff.pt"):
        Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).write_text("x\n")
    assert ended(uploader)
    new = {"logs/dtj-name-%FF.log", "model/dtj-name-%FF.pt"}
    assert {key for key, _ in store.puts} == new | {
        "logs/a.log", "logs/b.log", "model/m.pt", "model/manifest.json",
    }  # fmt: skip
    named = [file["path"] for file in json.loads(store.objects["model/manifest.json"])["files"]]
    assert sorted(named) == ["m.pt", "\udcff.pt"]
    assert uploader.refused.text == ""


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
