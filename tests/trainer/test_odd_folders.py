"""Checkpoints of programs that do odd things with their folder: nothing is lost, and nothing goes on for ever."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.trainer.memory_store import Bucket, Gate, MemoryStore
from tests.trainer.test_put_back import newest, seen, uploader, write

from dtj_trainer.artifacts import checkpoints
from dtj_trainer.artifacts.capture import AT_LONGEST, BUSY_CHANGES, SECOND, Capture, FolderState, Look, Node
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.restore import restore
from dtj_trainer.artifacts.retention import Candidate, kept
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.snapshot import read_index


class Store:
    """A job's bucket, its requests, and what happens before each of them."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.before = lambda request: None
        self.bucket = Bucket()
        self.job = MemoryStore(self.bucket, Gate(before=self._ask))

    def _ask(self, request: str) -> None:
        self.asked.append(request)
        self.before(request)

    def manifests(self) -> list[str]:
        return sorted(read_index(self.job.below("checkpoints")).manifests)

    def puts(self) -> list[str]:
        return [
            request[4:] for request in self.asked if request.startswith("put") and "." not in request[4:7]
        ]

    def is_whole(self) -> bool:
        files = [
            file for m in read_index(self.job.below("checkpoints")).manifests.values() for file in m.files
        ]
        contents = {file: self.bucket.objects[f"job/checkpoints/{file.key}"] for file in files}
        return all(sha256(content).hexdigest() == file.sha256 for file, content in contents.items())


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    monkeypatch.setenv("DTJ_ARTIFACTS_URI", "s3://not/pruned")
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def ended(sync: CheckpointUploader) -> bool:
    return sync.upload_pass(ended=True, died_ns=None)


def test_a_folder_that_the_program_removes_at_its_end_is_no_failure(folder: Path, store: Store) -> None:
    sync = uploader(folder, store.job)
    write(folder, a="1")
    sync.upload_pass(ended=False, died_ns=None)
    write(folder, b="2")
    shutil.rmtree(folder)
    assert ended(sync)
    assert store.manifests() == ["1"]


def test_what_is_removed_while_it_is_sent_is_copied_first(folder: Path, store: Store) -> None:
    sync = uploader(folder, store.job)
    step = 0

    def saves_again(request: str) -> None:
        nonlocal step
        if request.startswith("put") and request.endswith("model"):
            shutil.rmtree(folder / f"step-{step}")
            step += 1
            write(folder, **{f"step-{step}__model": f"{step}"})

    write(folder, **{f"step-{step}__model": f"{step}"})
    store.before = saves_again
    for _ in range(4):
        sync.upload_pass(ended=False, died_ns=None)
    store.before = lambda request: None
    assert store.manifests()
    assert store.is_whole()
    assert not [path for path in folder.parent.iterdir() if path != folder]
    write(folder, done="")
    assert ended(sync)
    named = {
        file.key for m in read_index(store.job.below("checkpoints")).manifests.values() for file in m.files
    }
    stored = {
        name.removeprefix("job/checkpoints/") for name in store.bucket.objects if name.endswith("model")
    }
    assert stored <= named, "nothing is left of what was given up"


def test_a_file_that_changes_for_ever_and_can_not_be_copied_is_told(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    sync = uploader(folder, store.job)
    write(folder, model="weights", other="1")

    def change(request: str) -> None:
        if request.startswith("put") and request.endswith("model"):
            write(folder, model=os.urandom(8).hex())

    store.before = change
    passes = [ended(sync) for _ in range(BUSY_CHANGES + 2)]
    assert passes[-1], "the end waits for ever"
    assert newest(store.job).paths == {"other"}
    assert caplog.text.count("model is not saved: it changes all the time, and the disk has no room") == 1


def test_a_log_that_grows_all_the_time_delays_nothing(folder: Path, store: Store) -> None:
    sync, over = uploader(folder, store.job), threading.Event()

    def append() -> None:
        while not over.wait(0.005):
            with (folder / "log.csv").open("a") as log:
                log.write("row\n")

    thread = threading.Thread(target=append)
    thread.start()
    try:
        until = time.monotonic() + 60
        write(folder, model="weights")
        while time.monotonic() < until and not (store.manifests() and "log.csv" in newest(store.job).paths):
            sync.upload_pass(ended=False, died_ns=None)
            time.sleep(0.05)
    finally:
        over.set()
        thread.join()
    assert newest(store.job).paths == {"log.csv", "model"}
    assert store.is_whole()


def test_a_file_that_is_overwritten_all_the_time_is_never_stored_half_written(
    folder: Path, store: Store
) -> None:
    def stored() -> str:
        (file,) = (file for file in newest(store.job).files if file.path == "last")
        return store.bucket.objects[f"job/checkpoints/{file.key}"].decode()

    sync = uploader(folder, store.job)
    with (folder / "other").open("w"):  # Delays the capture.
        for number in range(BUSY_CHANGES + 2):
            write(folder, last=f"whole {number}")
            sync.upload_pass(ended=False, died_ns=None)
    sync.upload_pass(ended=False, died_ns=None)
    assert stored().startswith("whole ")
    writer = None

    def begin(request: str) -> None:
        nonlocal writer
        if request.startswith("put") and request.endswith("first"):
            writer = (folder / "last").open("w")
            writer.write("ha")
            writer.flush()

    store.before = begin
    write(folder, last="whole again")
    for name in (
        "first",
        "second",
    ):  # The writer has the file open before it is sent, then already at the look.
        write(folder, **{name: ""})
        sync.upload_pass(ended=False, died_ns=None)
        assert name in newest(store.job).paths
        assert stored().startswith("whole ")
    assert writer is not None
    with writer:
        writer.write("lf")
    assert ended(sync)
    assert stored() == "half"
    assert store.is_whole()


def test_a_rename_or_another_link_sends_nothing_again(folder: Path, store: Store) -> None:
    sync = uploader(folder, store.job)
    write(folder, a="the same")
    assert ended(sync)
    (folder / "a").rename(folder / "best")
    os.link(folder / "best", folder / "last")
    store.asked.clear()
    assert ended(sync)
    assert [request for request in store.asked if request.startswith("put")] == ["put 2/manifest.json"]
    assert {file.path: file.key for file in newest(store.job).files} == {"best": "1/a", "last": "1/a"}


def test_long_names_come_back(folder: Path, store: Store, tmp_path: Path) -> None:
    for name in ("x" * 255, "é" * 127):
        (folder / name).write_text(name)
    (folder / ("d" * 252)).mkdir()
    assert ended(uploader(folder, store.job))
    target = tmp_path / "target"
    write(target, **{"e" * 252 + "__old": ""})
    (target / ".restore-1").touch()
    assert restore(store.job.below("checkpoints"), target, "Auto")
    assert seen(target) == seen(folder)


def test_times_of_the_first_version_are_those_of_its_restore(
    folder: Path, store: Store, tmp_path: Path
) -> None:
    content = {"version": 1, "step": 1, "time": "2026-01-01T00:00:00Z", "attempt": 1}
    content["entries"] = [{"name": "a.pt", "kind": "file"}]
    content["files"] = [{"path": "a.pt", "key": "a.pt", "size": 1, "sha256": sha256(b"1").hexdigest()}]
    below = store.job.below("checkpoints")
    below.put_bytes("1/a.pt", b"1")
    below.put_bytes("1/manifest.json", json.dumps(content).encode())
    sync = uploader(folder, store.job)
    found = restore(below, folder, "Auto")
    assert found
    sync.note_restored(found.manifest, own=True)
    (folder / "b.pt").write_text("2")
    assert ended(sync)
    assert {file.path: file.key for file in newest(store.job).files} == {"a.pt": "1/a.pt", "b.pt": "2/b.pt"}
    target = tmp_path / "target"
    target.mkdir()
    assert restore(below, target, "Auto")
    assert max(target.iterdir(), key=os.path.getmtime).name == "b.pt"


def test_the_restored_step_may_be_saved_again_with_files_on_demand(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def save(content: str) -> None:
        checkpoints.save(
            5, lambda path: (path / "a.distcp").write_text(content) and None, on_demand="*.distcp"
        )

    save("first")
    assert ended(uploader(folder, store.job))
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path / "second"))
    again = tmp_path / "second/checkpoints"
    again.mkdir(parents=True)
    sync = uploader(again, store.job)
    found = restore(store.job.below("checkpoints"), again, "Auto")
    assert found
    sync.note_restored(found.manifest, own=True)
    save("second")
    assert ended(sync)
    (state,) = [file for file in newest(store.job).files if file.path == "5/a.distcp"]
    assert state.sha256 == sha256(b"second").hexdigest()


def test_an_older_save_gets_no_key_that_another_snapshot_names(folder: Path, store: Store) -> None:
    """The number of the older save is that of a snapshot that was given up, and whose file a later one names."""
    sync = uploader(folder, store.job)

    def save(step: int) -> None:
        checkpoints.save(step, lambda path: (path / "state").write_text(f"{step}") and None)

    (folder / "2").mkdir()
    (folder / "2/state").write_text("of no save")

    def away(request: str) -> None:
        if "manifest" in request:
            raise S3Error("away", transient=True)

    store.before = away
    with pytest.raises(S3Error, match="away"):
        ended(sync)
    store.before = lambda request: None
    shutil.rmtree(folder / "2")
    write(folder, other="1")
    for step in (3, 1, 2):
        save(step)
    assert ended(sync)
    assert store.is_whole()


def test_a_save_counts_once_however_often_a_file_beside_it_changes() -> None:
    saves = [Candidate(1, step, save=f"{step}") for step in (1, 2, 3)]
    beside = [Candidate(1, number, save="3") for number in (4, 5, 6)]
    assert {candidate.number for candidate in kept([*saves, *beside], 3)} == {1, 2, 6}


def test_a_file_that_can_not_be_read_is_left_out(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put = MemoryStore.put_file

    def refused(self: MemoryStore, key: str, path: Path, *given: object, **named: object) -> str:
        if path.name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return put(self, key, path, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryStore, "put_file", refused)
    write(folder, model="1", secret="2")
    sync = uploader(folder, store.job)
    for _ in range(3):
        sync.upload_pass(ended=True, died_ns=None)
    assert newest(store.job).paths == {"model"}
    assert caplog.text.count("secret' is not uploaded: Permission denied") == 1
    assert sync.refused.text == "'secret': Permission denied"
    monkeypatch.setattr(MemoryStore, "put_file", put)
    (folder / "secret").chmod(0o600)  # The change shows in its change time.
    (folder / "secret").chmod(0o644)
    write(folder, other="3")
    assert ended(sync)
    assert "secret" in newest(store.job).paths
    assert sync.refused.text == ""


# --- without a disk -------------------------------------------------------------------------------

START = 10**6 * SECOND


@pytest.mark.parametrize("kind", ["a new file each second", "a log that is always open"])
def test_a_folder_without_a_quiet_moment_has_a_capture_in_the_end(kind: str) -> None:
    captures, taken = FolderState(5 * SECOND), []
    for second in range(2 * AT_LONGEST // SECOND):
        nodes = [Node("model", "file", 100, START, 1)]
        open_: frozenset[int] = frozenset()
        if kind.startswith("a new"):
            nodes += [
                Node(f"s-{number}", "file", 1, START + number * SECOND, 100 + number)
                for number in range(second - 3, second + 1)
            ]
        else:
            minute = second // 60
            nodes.append(Node(f"log-{minute}", "file", 1, START + 60 * minute * SECOND, 100 + minute))
            open_ = frozenset({100 + minute})
        captures.see(Look(START + second * SECOND, {node.path: node for node in nodes}, open_))
        found = captures.capture()
        if isinstance(found, Capture):
            captures.taken(found)
            taken.append((second, "model" in found.nodes))
    assert taken[0] == (AT_LONGEST // SECOND, True)


@pytest.mark.parametrize("back", [8, 3600])
def test_a_clock_that_is_set_back_delays_a_capture_by_the_settle_time(back: int) -> None:
    captures = FolderState(5 * SECOND)
    nodes = {"model": Node("model", "file", 100, START, 1)}
    captures.see(Look(START, nodes))
    now = START - back * SECOND
    for second in range(10):
        captures.see(Look(now + second * SECOND, nodes))
        if isinstance(captures.capture(), Capture):
            break
    assert second <= 6


def test_a_file_that_became_a_folder_is_one_or_the_other_after_a_kill() -> None:
    captures = FolderState(5 * SECOND)
    file = Node("latest", "file", 1, START, 1)
    captures.see(Look(START + 10 * SECOND, {"latest": file}))
    first = captures.capture()
    assert isinstance(first, Capture)
    captures.taken(first)
    inside = [Node("latest/a", "file", 1, START + 21 * SECOND, 3)]
    for second in range(20, 30):
        if second == 28:
            inside.append(Node("latest/b", "file", 1, START + 28 * SECOND, 4))
        nodes = [Node("latest", "directory", 0, inside[-1].changed_ns, 2), *inside]
        captures.see(Look(START + second * SECOND, {node.path: node for node in nodes}))
    found = captures.capture(died_ns=START + 29 * SECOND)
    if isinstance(found, Capture):
        assert found.nodes["latest"].kind == "directory"
