"""Checkpoints on disk and in the bucket: complete or absent, pruned, restored, torn, damaged.

* on disk: names, atomic saves, pruning, manifests
* in the bucket: uploads, pruning, files that change, a bucket that is away
* restores: torn, damaged, newer and other jobs' checkpoints
* many small files
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.conftest import fence_of, keys, steps_in

from dtj_trainer.artifacts import checkpoint_upload, checkpoints, s3
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.local_checkpoints import saved_folders
from dtj_trainer.artifacts.manifest import (
    VERSION,
    Manifest,
    ManifestError,
    StoredFile,
    StoredFolder,
    StoredLink,
)
from dtj_trainer.artifacts.multipart import HandedOver, Uploads
from dtj_trainer.artifacts.restore import restore
from dtj_trainer.artifacts.retention import Candidate, kept
from dtj_trainer.artifacts.s3 import Pace
from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.store import Store, open_store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    monkeypatch.setenv("DTJ_ARTIFACTS_URI", "s3://set-so-that-save-does-not-prune/x")
    path = tmp_path / "checkpoints"
    path.mkdir()
    return path


@pytest.fixture
def store(job_store):
    return job_store.below("checkpoints")


def uploader(folder: Path, store, **changes) -> CheckpointUploader:
    fence = fence_of(store, changes.pop("attempt", 1))
    settings = {"fence": fence, "keep": 3, "settle_seconds": 0.0, "step_at": lambda _: None} | changes
    return CheckpointUploader(folder, store, **settings)


def save(step: int, content: str = "", metric: float | None = None) -> Path:
    return checkpoints.save(
        step, lambda d: (d / "state").write_text(content or f"state {step}") and None, metric
    )


def upload(folder: Path, store, **changes) -> None:
    assert uploader(folder, store, **changes).upload_pass(ended=True, died_ns=None)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def other(tmp_path: Path) -> Path:
    path = tmp_path / "restored"
    path.mkdir(exist_ok=True)
    return path


# --- on disk -----------------------------------------------------------------------------------


def test_save_is_all_or_nothing(folder):
    def broken(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(5, broken)
    assert list(folder.iterdir()) == []
    assert checkpoints.newest() is None
    save(5, "first")
    assert save(5, "second") == folder / "5"
    assert (folder / "5" / "state").read_text() == "second"
    save(10)
    assert [c.step for c in checkpoints.saved()] == [5, 10]
    assert checkpoints.newest() == (10, folder / "10")
    assert names_in(folder) == ["10", "5"]


@pytest.mark.parametrize(("left", "full"), [(0, True), (10**9, False)])
def test_a_full_disk_is_told_as_such_in_whatever_words_the_write_fails(folder, monkeypatch, left, full):
    save(1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=left))

    def write(_: Path) -> None:
        raise RuntimeError("unexpected pos 704 vs 598")  # which is what torch.save says then

    with pytest.raises(OSError if full else RuntimeError) as caught:
        checkpoints.save(2, write)

    assert not full or caught.value.errno == errno.ENOSPC
    assert names_in(folder) == ["1"]


def test_what_a_killed_save_left_goes_with_the_next_and_a_save_that_goes_on_stays(folder):
    killed = """
import os, signal
from dtj_trainer.artifacts import checkpoints
checkpoints.save(1, lambda d: (d / "state").write_text("half") and os.kill(os.getpid(), signal.SIGKILL))
"""
    subprocess.run([sys.executable, "-c", killed], check=False)
    (folder / ".2.17.replaced.tmp").mkdir()
    (folder / ".of-others.tmp").mkdir()
    assert len(names_in(folder)) == 3

    def write(directory: Path) -> None:
        save(4)
        assert directory.is_dir(), "another save of this process does not remove it"
        (directory / "state").write_text("whole")

    checkpoints.save(3, write)
    assert names_in(folder) == [".of-others.tmp", "3", "4"]


def test_save_prunes_by_itself_without_a_bucket(folder, monkeypatch):
    monkeypatch.delenv("DTJ_ARTIFACTS_URI")
    monkeypatch.setenv("DTJ_CHECKPOINTS_KEEP", "2")
    for step in range(1, 6):
        save(step, metric=-abs(step - 2))
    assert [c.step for c in checkpoints.saved()] == [2, 4, 5]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 50), st.none() | st.floats(-1, 1)),
        unique_by=lambda c: c[:2],
    ),
    st.integers(0, 5),
)
def test_kept_are_the_newest_and_the_best(raw, newest):
    candidates = [Candidate(*c) for c in raw]
    keep = kept(candidates, newest)
    ordered = sorted(candidates, key=lambda c: (c.claim, c.number))
    assert set(ordered[-max(newest, 1) :]) <= keep
    assert len(keep) <= max(newest, 1) + 1
    measured = [c.metric for c in candidates if c.metric is not None]
    if measured:
        assert max(measured) in [c.metric for c in keep]


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 90)), unique=True), st.sampled_from([7, 10, 60]))
def test_the_first_of_each_period_stays_whatever_follows(raw, every):
    # Within a claim, and from one to the next, time rises with the step.
    candidates = [Candidate(claim, step, time=100 * claim + step) for claim, step in sorted(raw)]
    left: list[Candidate] = []
    for candidate in candidates:
        left = sorted(kept([*left, candidate], 1, every))
    firsts: dict[float, Candidate] = {}
    for candidate in candidates:
        firsts.setdefault(candidate.time // every, candidate)
    assert set(left) == {*firsts.values(), *candidates[-1:]}


def test_a_checkpoint_of_each_period_stays_in_the_bucket(folder, store, monkeypatch):
    hours = iter(["T00:10", "T00:50", "T01:20", "T02:00", "T02:05", "T02:06"])
    monkeypatch.setattr(checkpoint_upload, "now_text", lambda: f"2026-01-01{next(hours)}:00Z")
    sync = uploader(folder, store, keep=1, keep_every=3600.0)
    for step in range(1, 7):
        save(step)
        sync.upload_pass(ended=False, died_ns=None)
    assert steps_in(store) == [1, 3, 4, 6]
    assert [mark.step for mark in saved_folders(folder).values()] == [6]


def test_the_lower_metric_may_be_the_better():
    candidates = [Candidate(1, step, loss, "min") for step, loss in ((1, 0.5), (2, 0.1), (3, 0.9))]
    assert {c.number for c in kept(candidates, 1)} == {2, 3}


names = st.text(
    st.characters(categories=("L", "N"), include_characters="-_."), min_size=1, max_size=8
).filter(lambda n: n not in {".", ".."})


@given(
    st.integers(0, 10**9),
    st.none() | st.integers(0, 10**9),
    st.dictionaries(names, st.integers(0, 10**12), min_size=1, max_size=5),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["max", "min"]),
)
def test_manifest_comes_back_as_it_was_written(number, step, sizes, metric, mode):
    manifest = Manifest(
        number,
        step,
        "2026-01-01T00:00:00Z",
        2,
        tuple(StoredFile(f"e/{name}", f"7/{name}", size, "00", 5) for name, size in sizes.items()),
        (StoredFolder("e", 7), StoredFolder("empty")),
        (StoredLink("latest", "e", 9),),
        ("latest",),
        metric,
        mode if metric is not None else "max",
    )
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_manifest_of_the_first_version_is_read():
    content = {
        "version": 1,
        "step": 7,
        "time": "2026-01-01T00:00:00Z",
        "attempt": 2,
        "claim": 2,
        "entries": [{"name": "7", "kind": "directory"}],
        "files": [{"path": "7/state", "key": "state", "size": 1, "sha256": "00"}],
        "metric": 0.5,
        "metricMode": "min",
    }
    found = Manifest.from_json(json.dumps(content).encode())
    assert (found.folder, found.step, found.metric, found.metric_mode) == ("7-2", 7, 0.5, "min")
    assert found.files == (StoredFile("7/state", "7-2/state", 1, "00"),)


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reading_of_a_manifest(content):
    with pytest.raises(ManifestError):
        Manifest.from_json(content)


@pytest.mark.parametrize(
    "manifest",
    [
        *(
            Manifest(1, 1, "t", 1, (StoredFile(path, "1/k", 1, "00"),))
            for path in ("../x", "/etc/passwd", "e/../../x", "", ".", "a//b", "a/./b", "a/")
        ),
        *(
            Manifest(1, 1, "t", 1, (StoredFile("a", key, 1, "00"),))
            for key in ("../x", "/x", "", "1/../../x")
        ),
        *(
            Manifest(1, 1, "t", 1, (), (), (StoredLink(path, target),))
            for path, target in (
                ("a", "../x"),
                ("a", "/etc"),
                ("a/b", "../../x"),
                ("a", "b/../../x"),
                ("a", "b/.."),
                ("a", ""),
                ("../a", "x"),
            )
        ),
        Manifest(1, 1, "t", 1, (StoredFile("a/b", "1/k", 1, "00"),), (), (StoredLink("a", "c"),)),
        Manifest(1, 1, "t", 1, (StoredFile("a", "1/k", 1, "00"),), (), (StoredLink("a", "c"),)),
        Manifest(1, 1, "t", 1, (StoredFile("a", "1/k", 1, "00"),), (StoredFolder("a"),)),
    ],
)
def test_manifest_may_not_leave_the_folder(manifest):
    with pytest.raises(ManifestError):
        Manifest.from_json(manifest.to_json())


# --- in the bucket -----------------------------------------------------------------------------


def test_a_snapshot_is_the_whole_folder_with_its_times_and_links(folder, store, tmp_path):
    (folder / "checkpoint-20" / "inner").mkdir(parents=True)
    (folder / "checkpoint-20" / "inner" / "weights").write_bytes(b"w" * 1000)
    (folder / "checkpoint-20" / "manifest.json").write_text("the program's own")
    (folder / "checkpoint-20" / ".metadata").write_text("hidden")
    (folder / "empty").mkdir()
    (folder / "best.pt").write_text("file")
    (folder / "latest").symlink_to("checkpoint-20")
    (folder / "absolute").symlink_to(folder / "best.pt")
    (folder / "pods").write_text("a name with a meaning in the bucket")
    for age, path in enumerate(sorted(folder.rglob("*"))):
        os.utime(path, ns=(10**18 - age * 10**9,) * 2, follow_symlinks=False)
    upload(folder, store)
    assert {key for key in keys(store, "1") if "named" not in key} == {
        "1/best.pt",
        "1/checkpoint-20/.metadata",
        "1/checkpoint-20/inner/weights",
        "1/checkpoint-20/manifest.json",
        "1/manifest.json",
    }
    (manifest,) = read_index(store).manifests.values()
    assert (manifest.number, manifest.step, manifest.attempt) == (1, None, 1)
    restored = restore(store, other(tmp_path), "Auto")
    assert restored is not None

    def seen(root: Path) -> dict[str, tuple[object, int]]:
        return {
            str(path.relative_to(root)): (
                str(path.readlink()) if path.is_symlink() else path.is_file() and path.read_bytes(),
                path.lstat().st_mtime_ns,
            )
            for path in root.rglob("*")
        }

    there, back = seen(folder), seen(other(tmp_path))
    assert back.pop("absolute")[0] == "best.pt"
    del there["absolute"]
    assert back == there
    # The order of the change times is that of the times, too.
    tops = sorted(other(tmp_path).iterdir(), key=lambda path: path.lstat().st_mtime_ns)
    changed = [path.lstat().st_ctime_ns for path in tops]
    assert changed == sorted(changed)


def test_unchanged_files_are_sent_once_and_stay_while_a_manifest_names_them(folder, store, tmp_path):
    sync = uploader(folder, store, keep=1)
    (folder / "data").write_text("large")
    for number in (1, 2, 3):
        (folder / f"epoch-{number}").mkdir()
        (folder / f"epoch-{number}/model").write_text(f"{number}")
        assert sync.upload_pass(ended=True, died_ns=None)
    (folder / "epoch-2").rename(folder / "renamed")
    shutil.rmtree(folder / "epoch-1")
    (folder / "last").touch()
    assert sync.upload_pass(ended=True, died_ns=None)
    # The oldest one that is not old enough yet stays to become the anchor.
    assert sorted(keys(store)) == [
        "1/data",
        "1/epoch-1/model",
        "1/manifest.json",
        "2/epoch-2/model",
        "3/epoch-3/model",
        "4/last",
        "4/manifest.json",
    ]
    assert restore(store, other(tmp_path), "Auto") is not None
    assert names_in(other(tmp_path)) == ["data", "epoch-3", "last", "renamed"]
    assert (other(tmp_path) / "renamed/model").read_text() == "2"


def test_deletions_alone_are_no_snapshot(folder, store):
    sync = uploader(folder, store)
    (folder / "backup").write_text("x")
    assert sync.upload_pass(ended=True, died_ns=None)
    (folder / "backup").unlink()
    assert sync.upload_pass(ended=True, died_ns=None)
    assert [*read_index(store).manifests] == ["1"]


def test_an_anchor_is_kept_beside_the_newest_of_whole_folders():
    left: list[Candidate] = []
    for number in range(400):  # One every 15 s.
        left = sorted(kept([*left, Candidate(1, number, time=15.0 * number, whole=True)], 3))
        ages = [15.0 * (number - candidate.number) for candidate in left]
        assert len(left) <= 5
        assert number < 40 or any(600 <= age <= 1300 for age in ages)
    assert len(kept([Candidate(1, number, time=600.0 * number) for number in range(9)], 3)) == 3


def test_manifest_is_the_last_object(folder, store, monkeypatch):
    fence_of(store).hold()
    order: list[str] = []
    put_bytes = type(store).put_bytes
    monkeypatch.setattr(
        type(store), "put_bytes", lambda s, k, *a, **b: (order.append(k), put_bytes(s, k, *a, **b))[1]
    )
    save(1)
    upload(folder, store)
    assert order[-1] == "1/manifest.json"
    assert len(order) == 3


def test_only_what_is_complete_is_uploaded(folder, store, monkeypatch):
    sync = uploader(folder, store, settle_seconds=60)
    assert sync.upload_pass(ended=False, died_ns=None)
    (folder / "ckpt-1.pt").write_text("growing")
    assert not sync.upload_pass(ended=False, died_ns=None)
    assert keys(store) == []
    save(2)
    sync.upload_pass(ended=False, died_ns=None)
    assert steps_in(store) == [2]
    later = time.time_ns() + 60 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    sync.upload_pass(ended=False, died_ns=None)
    assert sorted(read_index(store).manifests["3"].paths) == [
        "2",
        "2/.dtj-checkpoint.json",
        "2/state",
        "ckpt-1.pt",
    ]


def test_what_was_unfinished_when_the_program_was_killed_never_counts(folder, store):
    sync = uploader(folder, store, settle_seconds=60)
    (folder / "ckpt-1.pt").write_text("half")
    assert sync.upload_pass(ended=False, died_ns=time.time_ns())
    assert keys(store) == []


def test_the_newest_and_the_best_stay(folder, store):
    sync = uploader(folder, store, keep=2)
    for step in range(1, 7):
        save(step, metric=-abs(step - 2))
        assert sync.upload_pass(ended=False, died_ns=None)
    assert steps_in(store) == [2, 5, 6]
    assert {key.split("/")[0] for key in keys(store)} == {"2", "5", "6"}
    assert names_in(folder) == ["2", "5", "6"]
    assert sync.newest is not None
    assert sync.newest["step"] == 6


@pytest.mark.parametrize("broken", ["folders", "put_with_sha256"])
def test_the_disk_does_not_fill_up_while_the_bucket_is_away(folder, store, monkeypatch, broken):
    def away(*_: object) -> None:
        raise s3.S3Error("away", transient=True)

    sync = uploader(folder, store, keep=2)
    with monkeypatch.context() as patch:
        patch.setattr(store, broken, away)
        for step in range(1, 7):
            save(step, metric=-abs(step - 2))
            with pytest.raises(s3.S3Error, match="away"):
                sync.upload_pass(ended=False, died_ns=None)
        assert names_in(folder) == ["2", "5", "6"]
    assert sync.upload_pass(ended=False, died_ns=None)
    assert steps_in(store) == [2, 5, 6]


def test_files_of_other_writers_are_pruned_in_the_bucket_only(folder, store):
    sync = uploader(folder, store, keep=1)
    for step in (1, 2, 3):
        (folder / f"ckpt-{step}.pt").write_text("x")
        assert sync.upload_pass(ended=True, died_ns=None)
    assert sorted(read_index(store).manifests) == ["1", "3"]
    assert len(names_in(folder)) == 3


def test_file_overwritten_in_place(folder, store):
    """`latest.pt` becomes one checkpoint a step, numbered by the program's progress."""
    step = 100
    sync = uploader(folder, store, step_at=lambda _: step)
    for step in (100, 200):
        (folder / "latest.pt").write_text(f"at {step}")
        assert sync.upload_pass(ended=True, died_ns=None)
        assert sync.upload_pass(ended=True, died_ns=None)
    assert steps_in(store) == [100, 200]
    assert store.get_bytes("200/latest.pt") == b"at 200"


def test_file_overwritten_in_place_by_a_program_without_progress(folder, store):
    sync = uploader(folder, store)
    for number in (1, 2, 3):
        (folder / "latest.pt").write_text(f"version {number}")
        assert sync.upload_pass(ended=True, died_ns=None)
    assert sorted(read_index(store).manifests) == ["1", "2", "3"]


def test_upload_over_the_same_step_never_tears_what_is_there(folder, store, tmp_path, monkeypatch):
    sync = uploader(folder, store)
    save(1, "old")
    assert sync.upload_pass(ended=True, died_ns=None)
    save(1, "new")
    put_bytes = type(store).put_bytes

    def cut_off(self, key, *more, **conditions):
        if key.endswith("manifest.json"):
            raise s3.S3Error("S3 went away", transient=True)
        return put_bytes(self, key, *more, **conditions)

    monkeypatch.setattr(type(store), "put_bytes", cut_off)
    with pytest.raises(s3.S3Error):
        sync.upload_pass(ended=True, died_ns=None)
    assert restore(store, other(tmp_path), "Auto") is not None
    assert (other(tmp_path) / "1" / "state").read_text() == "old"
    monkeypatch.setattr(type(store), "put_bytes", put_bytes)
    assert sync.upload_pass(ended=True, died_ns=None)
    restored = restore(store, other(tmp_path), "Auto")
    assert restored is not None
    assert (restored.manifest.number, restored.manifest.step) == (2, 1)
    assert (other(tmp_path) / "1" / "state").read_text() == "new"


def test_what_has_no_manifest_is_no_checkpoint_and_no_warning(folder, store, tmp_path, caplog):
    for step in (1, 2):
        save(step)
    upload(folder, store)
    store.delete(["2/manifest.json"])
    restored = restore(store, other(tmp_path), "Auto")
    assert restored is not None
    assert restored.manifest.step == 1
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda store: store.put_bytes("2/state", b"other 2"), "state is damaged (its sha256 differs)"),
        (lambda store: store.put_bytes("2/state", b"short"), "state has 5 bytes instead of 7"),
        (lambda store: store.delete(["2/state"]), "state is missing in the bucket"),
        (lambda store: store.put_bytes("2/manifest.json", b"{"), "the manifest can't be read"),
    ],
)
def test_damaged_checkpoint_is_skipped(folder, store, tmp_path, caplog, damage, words):
    for step in (1, 2):
        save(step)
    upload(folder, store)
    damage(store)
    restored = restore(store, other(tmp_path), "Auto")
    assert restored is not None
    assert restored.manifest.step == 1
    assert "is damaged" in caplog.text
    assert words in caplog.text
    assert names_in(other(tmp_path)) == ["1"]


def test_nothing_to_restore_is_said(store, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert restore(store, other(tmp_path), "Auto") is None
    assert f"no checkpoint below {store.location.uri}: training starts from 0" in caplog.text


def test_resume_never(folder, store, tmp_path):
    save(1)
    upload(folder, store)
    assert restore(store, other(tmp_path), "Never") is None
    assert names_in(other(tmp_path)) == []


def test_a_later_attempt_that_starts_again_is_newer(folder, store, tmp_path):
    for step in (800, 900):
        save(step)
    upload(folder, store)
    for step in (800, 900):
        shutil.rmtree(folder / str(step))
    save(100)
    upload(folder, store, attempt=2, keep=2)
    assert steps_in(store) == [100, 900]
    restored = restore(store, other(tmp_path), "Auto")
    assert restored is not None
    assert restored.manifest.step == 100


@pytest.mark.parametrize("below", ["", "/checkpoints", "/checkpoints/2"])
def test_resume_from_another_job(folder, store, job_store, job_uri, tmp_path, below):
    for step in (1, 2):
        save(step)
    upload(folder, store)
    own = job_store.below("second-job/checkpoints")
    restored = restore(own, other(tmp_path), f"{job_uri}{below}")
    assert restored is not None
    assert (restored.manifest.step, restored.own) == (2, False)
    save(7)
    upload(folder, own, attempt=2)  # From now on its own are used.
    restored = restore(own, other(tmp_path), f"{job_uri}{below}")
    assert restored is not None
    assert (restored.manifest.step, restored.own) == (7, True)


def test_resume_from_a_prefix_without_checkpoints_is_an_error(store, job_uri, tmp_path):
    with pytest.raises(s3.S3Error, match="no complete checkpoint to resume from below s3://"):
        restore(store, other(tmp_path), f"{job_uri}/nothing")


def test_restored_checkpoint_is_not_uploaded_again(folder, store, tmp_path):
    save(1)
    upload(folder, store)
    target = other(tmp_path)
    restored = restore(store, target, "Auto")
    assert restored is not None
    before = store.get_bytes("1/manifest.json")
    sync = uploader(target, store, attempt=2)
    sync.note_restored(restored.manifest, own=True)
    assert sync.upload_pass(ended=True, died_ns=None)
    assert store.get_bytes("1/manifest.json") == before


def test_a_link_without_a_target_keeps_no_checkpoint_back(folder, store, tmp_path):
    nested = folder / "1" / "nested"
    nested.mkdir(parents=True)
    (nested / "state").write_text("state")
    (nested / "a").symlink_to("nowhere")
    (nested / "b").symlink_to("b")
    (nested / "c").symlink_to("state")
    upload(folder, store)
    assert restore(store, other(tmp_path), "Auto") is not None
    assert names_in(other(tmp_path) / "1/nested") == ["a", "b", "c", "state"]
    assert (other(tmp_path) / "1/nested/c").read_text() == "state"


def test_interrupted_restore_fetches_only_what_is_missing(folder, store, tmp_path, monkeypatch):
    (folder / "1").mkdir()
    for name in ("a", "b"):
        (folder / "1" / name).write_text(name)
    upload(folder, store)
    get = type(store).get_with_sha256
    fetched: list[str] = []

    def breaks_at_b(self, key, path, **small):
        fetched.append(key)
        if fetched.count("1/1/b") == 1 and key == "1/1/b":
            raise s3.S3Error("S3 went away", transient=True)
        return get(self, key, path, **small)

    monkeypatch.setattr(type(store), "get_with_sha256", breaks_at_b)
    with pytest.raises(s3.S3Error):
        restore(store, other(tmp_path), "Auto")
    assert restore(store, other(tmp_path), "Auto") is not None
    assert sorted(fetched) == ["1/1/a", "1/1/b", "1/1/b"]


def test_file_that_changes_during_its_upload_is_no_checkpoint_yet(folder, store, monkeypatch):
    (folder / "latest.pt").write_text("one")
    put = type(store).put_with_sha256

    def changes_meanwhile(self, key, path, on_bytes=None):
        sha256 = put(self, key, path, on_bytes)
        path.write_text("another")
        return sha256

    monkeypatch.setattr(type(store), "put_with_sha256", changes_meanwhile)
    sync = uploader(folder, store)
    assert not sync.upload_pass(ended=True, died_ns=None)
    assert read_index(store).manifests == {}
    monkeypatch.setattr(type(store), "put_with_sha256", put)
    assert sync.upload_pass(ended=True, died_ns=None)
    assert b"another" in [store.get_bytes(key) for key in keys(store)]
    assert len(keys(store)) == 2


def test_torn_leftovers_go_once_there_is_something_new(folder, store):
    store.put_bytes("5/state", b"torn")
    sync = uploader(folder, store, attempt=2)
    sync.upload_pass(ended=True, died_ns=None)
    assert keys(store) == ["5/state"]
    save(6)
    sync.upload_pass(ended=True, died_ns=None)
    assert keys(store, "5") == []


DAMAGES = {
    "another content": lambda store, step: store.put_bytes(f"{step}/state", b"other 2"),
    "a file is gone": lambda store, step: store.delete([f"{step}/state"]),
    "no JSON": lambda store, step: store.put_bytes(f"{step}/manifest.json", b"{"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_training_does_not_start_from_0_over_checkpoints_that_are_all_damaged(
    folder, store, tmp_path, damage
):
    for step in (1, 2):
        save(step)
    upload(folder, store)
    for step in (1, 2):
        DAMAGES[damage](store, step)
    with pytest.raises(s3.S3Error, match=r"no checkpoint below s3://\S+ can be restored: 2 damaged") as told:
        restore(store, other(tmp_path), "Auto")
    assert not told.value.transient
    assert "set spec.artifacts.resume: Never" in str(told.value)
    assert restore(store, other(tmp_path), "Never") is None


def of_a_later_release(store, step: int) -> None:
    """Make a checkpoint's manifest one of the next version, in which all but the version may be different."""
    store.put_bytes(f"{step}/manifest.json", json.dumps({"version": VERSION + 1, "shards": []}).encode())


def test_a_checkpoint_of_a_later_release_is_refused_and_stays(folder, store, tmp_path):
    for step in (1, 2):
        save(step)
    upload(folder, store)
    of_a_later_release(store, 2)
    with pytest.raises(s3.S3Error, match=f"this release reads manifests up to version {VERSION}") as told:
        restore(store, other(tmp_path), "Auto")
    assert not told.value.transient
    assert store.uri("2") in str(told.value)
    assert names_in(other(tmp_path)) == []
    for step in (3, 4):
        save(step)
    upload(folder, store, keep=1, attempt=2)
    assert "2/state" in keys(store, "2")
    # With resume: Never the next attempt wrote checkpoints of its own, which are newer.
    restored = restore(store, other(tmp_path), "Auto")
    assert restored is not None
    assert restored.manifest.folder == "4-2"


def test_a_later_release_s_checkpoint_to_resume_from_is_refused(folder, store, job_store, job_uri, tmp_path):
    save(1)
    upload(folder, store)
    of_a_later_release(store, 1)
    own = job_store.below("second-job/checkpoints")
    for below in ("", "/checkpoints", "/checkpoints/1"):
        with pytest.raises(s3.S3Error, match=rf"version.* {VERSION}"):
            restore(own, other(tmp_path), f"{job_uri}{below}")


def no_delete(client, code: str, *, whole: bool) -> None:
    """Have a client's DeleteObjects refused: the request as a whole, or each of its keys."""
    refusal = {"Code": code, "Message": "not here"}

    def answer(params, **_):
        if whole:
            return SimpleNamespace(status_code=403), {"Error": refusal}
        body = params["body"].decode()
        errors = [refusal | {"Key": key.split("</Key>")[0]} for key in body.split("<Key>")[1:]]
        return SimpleNamespace(status_code=200), {"Errors": errors}

    client.meta.events.register("before-call.s3.DeleteObjects", answer)


@pytest.mark.parametrize(
    ("code", "whole"), [("AccessDenied", True), ("AccessDenied", False), ("ObjectLocked", False)]
)
def test_what_the_bucket_does_not_let_go_of_stays_with_one_warning(folder, store, caplog, code, whole):
    client = s3.make_client()
    no_delete(client, code, whole=whole)
    asked: list[str] = []
    client.meta.events.register(
        "before-send.s3.*", lambda request, **_: asked.append(request.method) and None
    )
    locked = Store(store.location, client)
    store.put_bytes("1-7/state", b"torn")
    sync = uploader(folder, locked, keep=1)
    for step in (11, 12, 13):
        save(step)
        assert sync.upload_pass(ended=False, died_ns=None)
    assert sync.upload_pass(ended=True, died_ns=None)
    assert steps_in(store) == [11, 12, 13]
    assert caplog.text.count("old checkpoints stay in the bucket") == 1
    assert code in caplog.text
    asked.clear()
    assert sync.upload_pass(ended=True, died_ns=None)
    assert asked == [], "what was refused is not asked for again"


def test_a_deletion_that_may_succeed_later_is_tried_again(folder, store):
    client = s3.make_client()
    no_delete(client, "SlowDown", whole=False)
    sync = uploader(folder, Store(store.location, client), keep=1)
    save(1)
    assert sync.upload_pass(ended=False, died_ns=None)
    save(2)
    with pytest.raises(s3.S3Error, match=r"/1/manifest.json could not be deleted: SlowDown") as told:
        sync.upload_pass(ended=False, died_ns=None)
    assert told.value.transient


# --- many small files ----------------------------------------------------------------------------


def many(folder: Path, count: int = 40) -> None:
    (folder / "1").mkdir()
    for number in range(count):
        (folder / "1" / f"{number:02}").write_text(str(number))


def test_small_files_are_sent_and_fetched_several_at_a_time(folder, store, tmp_path, monkeypatch):
    many(folder)
    for name in ("put_with_sha256", "get_with_sha256"):
        monkeypatch.setattr(type(store), name, together(getattr(type(store), name), threading.Barrier(4)))
    upload(folder, store)
    assert restore(store, other(tmp_path), "Auto") is not None
    assert names_in(other(tmp_path) / "1") == names_in(folder / "1")
    (manifest,) = read_index(store).manifests.values()
    assert [file.path for file in manifest.files] == [f"1/{number:02}" for number in range(40)]


def together(transfer, barrier):
    """The transfer, of which so many are under way at once."""

    def one(*given, **named):
        barrier.wait(60)
        return transfer(*given, **named)

    return one


def test_small_files_that_arrived_before_an_error_are_not_sent_again(folder, store, monkeypatch):
    many(folder)
    put, asked = type(store).put_with_sha256, Counter()

    def breaks(self, key, path, on_bytes=None):
        asked[path.name] += 1
        if path.name == "20" and asked["20"] == 1:
            raise s3.S3Error("S3 went away", transient=True)
        return put(self, key, path, on_bytes)

    monkeypatch.setattr(type(store), "put_with_sha256", breaks)
    sync = uploader(folder, store)
    with pytest.raises(s3.S3Error, match="S3 went away"):
        sync.upload_pass(ended=True, died_ns=None)
    assert sync.upload_pass(ended=True, died_ns=None)
    assert asked.pop("20") == 2
    assert set(asked.values()) == {1}


def test_at_the_end_of_the_program_small_files_are_handed_over(folder, job_store, monkeypatch):
    many(folder)
    pace = Pace(beside_program=True)
    store = open_store(job_store.location.uri, uploads=Uploads(pace=pace)).below("checkpoints")
    put = Store.put_with_sha256

    def program_ends(self, key, path, on_bytes=None):
        if path.name == "10":
            pace.hurry()
        return put(self, key, path, on_bytes)

    monkeypatch.setattr(Store, "put_with_sha256", program_ends)
    sync = uploader(folder, store)
    with pytest.raises(HandedOver):
        sync.upload_pass(ended=True, died_ns=None)
    assert 10 < len([*store.objects("1")]) < 40
    assert sync.upload_pass(ended=True, died_ns=None)
    assert len(next(iter(read_index(store).manifests.values())).files) == 40
