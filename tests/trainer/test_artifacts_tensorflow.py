"""Checkpoints of TensorFlow 2.21: flat files, and a file that names the newest checkpoint.

* the layout of a session, and the state file
* mirrors of checkpoint directories, damaged downloads
* requests while nothing changes
* a chief that was replaced
"""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest
from tests.trainer.conftest import fence_of, steps_in

from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.put_back import remove
from dtj_trainer.artifacts.restore import CheckpointMirror, restore
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.snapshot import read_index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoints"
    path.mkdir()
    return path


@pytest.fixture
def restored(tmp_path: Path) -> Path:
    path = tmp_path / "restored"
    path.mkdir()
    return path


@pytest.fixture
def store(job_store):
    return job_store.below("checkpoints")


def write(folder: Path, step: int, content: str = "") -> None:
    """What `MonitoredTrainingSession` leaves at a step."""
    for ending in ("data-00000-of-00001", "index", "meta"):
        (folder / f"model.ckpt-{step}.{ending}").write_text(content or f"{ending} of {step}")
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{folder}/model.ckpt-{step}"\n')


def uploader(folder: Path, store, *, attempt: int = 1, keep: int = 3) -> CheckpointUploader:
    return CheckpointUploader(
        folder, store, fence=fence_of(store, attempt), keep=keep, settle_seconds=0.0, step_at=lambda _: None
    )


def upload(folder: Path, store, *, attempt: int = 1) -> None:
    assert uploader(folder, store, attempt=attempt).upload_pass(ended=True, died_ns=None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files_of(step: int) -> list[str]:
    return [f"model.ckpt-{step}.{ending}" for ending in ("data-00000-of-00001", "index", "meta")]


def test_layout_of_a_session(folder, store, restored):
    """The step is that of the newest index; the time in the name of an event file is none."""
    (folder / "graph.pbtxt").write_text("node {}")
    (folder / "events.out.tfevents.1795242035.vm").write_text("events")
    for step in (60, 120):
        write(folder, step)
    upload(folder, store)
    (manifest,) = read_index(store).manifests.values()
    assert (manifest.number, manifest.step) == (120, 120)
    restore(store, restored, "Auto")
    assert names(restored) == ["checkpoint", "graph.pbtxt", *files_of(120), *files_of(60)]
    assert (restored / "checkpoint").read_bytes() == (folder / "checkpoint").read_bytes()


def test_of_the_first_version_tensorflow_finds_what_was_restored(store, restored):
    """The state file that was stored with it was of a later checkpoint."""
    files = []
    for name in (*files_of(60), "checkpoint"):
        content = b'model_checkpoint_path: "model.ckpt-120"\n' if name == "checkpoint" else b"x"
        store.put_bytes(f"60/{name}", content)
        files.append({"path": name, "key": name, "size": len(content), "sha256": sha256(content).hexdigest()})
    content = {
        "version": 1,
        "step": 60,
        "time": "2026-01-01T00:00:00Z",
        "attempt": 1,
        "entries": [{"name": file["path"], "kind": "file"} for file in files],
        "files": files,
    }
    store.put_bytes("60/manifest.json", json.dumps(content).encode())
    found = restore(store, restored, "Auto")
    assert names(restored) == ["checkpoint", *files_of(60)]
    assert (restored / "checkpoint").read_text().startswith('model_checkpoint_path: "model.ckpt-60"\n')
    second = uploader(restored, store, attempt=2)
    second.note_restored(found.manifest, own=True)
    assert second.upload_pass(ended=True, died_ns=None)
    assert steps_in(store) == [60]


def test_mirror_goes_back_with_the_run(folder, store, restored):
    """A later attempt began again from less: what was undone goes, as do damaged ones never come."""
    for step in (60, 120):
        write(folder, step)
    upload(folder, store)
    mirror = CheckpointMirror(restored, store, keep=3)
    mirror.mirror_pass(ended=False, died_ns=None)
    assert names(restored) == ["checkpoint", *files_of(120), *files_of(60)]
    for name in names(folder):
        (folder / name).unlink()
    write(folder, 90, "second attempt")
    second = uploader(folder, store, attempt=2)
    assert second.upload_pass(ended=True, died_ns=None)
    mirror.mirror_pass(ended=False, died_ns=None)
    assert names(restored) == ["checkpoint", *files_of(90)]
    write(folder, 100)
    assert second.upload_pass(ended=True, died_ns=None)
    store.put_bytes("100-2/model.ckpt-100.index", b"damaged")
    mirror.mirror_pass(ended=False, died_ns=None)
    assert mirror.newest["step"] == 90
    assert names(restored) == ["checkpoint", *files_of(90)]


def test_the_mirror_fetches_what_is_new_alone(folder, store, restored, monkeypatch):
    sync = uploader(folder, store)
    write(folder, 60)
    assert sync.upload_pass(ended=True, died_ns=None)
    mirror = CheckpointMirror(restored, store, keep=3)
    mirror.mirror_pass(ended=False, died_ns=None)
    write(folder, 120)
    assert sync.upload_pass(ended=True, died_ns=None)
    get, fetched = type(store).get_with_sha256, []
    monkeypatch.setattr(
        type(store),
        "get_with_sha256",
        lambda self, key, path, **small: (fetched.append(path.name), get(self, key, path, **small))[1],
    )
    mirror.mirror_pass(ended=False, died_ns=None)
    assert sorted(fetched) == ["checkpoint", *files_of(120)]
    assert names(restored) == ["checkpoint", *files_of(120), *files_of(60)]


def test_mirror_tries_a_damaged_download_again(folder, store, restored, monkeypatch):
    """Also of the last checkpoint, after which no manifest changes; less and less often, where it stays damaged."""
    sync = uploader(folder, store)
    for step in (60, 120):
        write(folder, step)
        assert sync.upload_pass(ended=True, died_ns=None)
    clock, fetched = [0.0], []
    get = type(store).get_with_sha256

    def get_damaged(self, key, path, **small):
        sha256 = get(self, key, path, **small)
        if path.name == "model.ckpt-120.index":
            fetched.append(clock[0])
            path.write_text("damaged")
        return sha256

    monkeypatch.setattr(type(store), "get_with_sha256", get_damaged)
    mirror = CheckpointMirror(restored, store, keep=3, now=lambda: clock[0])
    while clock[0] < 600:
        mirror.mirror_pass(ended=False, died_ns=None)
        assert mirror.newest["step"] == 60
        clock[0] += 3
    attempts = fetched[::2]  # Each fetches a damaged file twice.
    assert attempts[:2] == [0, 3]
    assert 30 <= attempts[-1] - attempts[-2] <= 63
    monkeypatch.setattr(type(store), "get_with_sha256", get)
    clock[0] += 60
    mirror.mirror_pass(ended=False, died_ns=None)
    assert mirror.newest["step"] == 120


def test_a_directory_goes_in_one_step(tmp_path, monkeypatch):
    for name in ("60", ".removed-60"):  # The second is left by a call that was interrupted.
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").touch()
    rmtree, seen = shutil.rmtree, []
    monkeypatch.setattr(
        shutil, "rmtree", lambda path: (seen.append((tmp_path / "60").exists()), rmtree(path))
    )
    remove(tmp_path / "60")
    assert seen == [True, False]
    assert names(tmp_path) == []


def test_one_request_while_nothing_changes(folder, store, restored, monkeypatch):
    write(folder, 60)
    upload(folder, store)
    mirror = CheckpointMirror(restored, store, keep=3)
    mirror.mirror_pass(ended=False, died_ns=None)
    monkeypatch.setattr(store, "get_bytes", None)
    monkeypatch.setattr(store, "objects", None)
    mirror.mirror_pass(ended=False, died_ns=None)


def test_a_chief_that_was_replaced_leaves_the_bucket_alone(folder, store, tmp_path):
    old = uploader(folder, store, keep=1)
    write(folder, 60)
    assert old.upload_pass(ended=True, died_ns=None)
    newer = tmp_path / "newer"
    newer.mkdir()
    write(newer, 120, "of attempt 2")
    upload(newer, store, attempt=2)
    write(folder, 120)
    write(folder, 180)
    with pytest.raises(S3Error, match="attempt 2 has taken over s3://"):
        old.upload_pass(ended=True, died_ns=None)
    manifests = read_index(store).manifests
    assert sorted(manifests) == ["120-2", "60"]
    assert manifests["120-2"].attempt == 2
    assert store.get_bytes("120-2/model.ckpt-120.index") == b"of attempt 2"
