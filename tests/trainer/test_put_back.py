"""A folder becomes what a snapshot says, whatever is there before."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence
from dtj_trainer.artifacts.file_fetch import fetch_files
from dtj_trainer.artifacts.manifest import UNKNOWN_TIME, Manifest
from dtj_trainer.artifacts.put_back import put_back, remove_others
from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "written").mkdir()
    return tmp_path / "written"


@pytest.fixture
def job() -> Store:
    return MemoryStore(Bucket(), Gate())


def uploader(folder: Path, job: Store) -> CheckpointUploader:
    return CheckpointUploader(
        folder,
        job.below("checkpoints"),
        fence=Fence(job, contract.CLAIM_FILE, 1),
        keep=3,
        settle_seconds=0.0,
        step_at=lambda _: None,
    )


def write(folder: Path, **files: str) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def seen(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): f"-> {path.readlink()}"
        if path.is_symlink()
        else "folder"
        if path.is_dir()
        else path.read_text()
        for path in folder.rglob("*")
    }


def newest(job: Store) -> Manifest:
    return read_index(job.below("checkpoints")).newest_first()[0]


def brought(job: Store, target: Path, **present: Manifest) -> None:
    manifest = newest(job)
    before = {file.path: file for each in present.values() for file in each.files}
    assert put_back(job.below("checkpoints"), manifest, target, present=before) is None
    remove_others(target, manifest.paths)


def test_whatever_is_there_becomes_the_snapshot(folder: Path, job: Store, tmp_path: Path) -> None:
    write(folder, a__b="1", a__c__d="2", e="3", f__g="4")
    (folder / "empty").mkdir()
    (folder / "last").symlink_to("a/c")
    uploader(folder, job).upload_pass(ended=True, died_ns=None)
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    write(elsewhere, kept="x")
    write(target, a__b="another", a__c="a file in place of a folder", other__x="y", last__z="a folder")
    (target / "e").mkdir()
    (target / "f").symlink_to(elsewhere)
    (target / ".restore-7").mkdir()
    write(target, **{"notes.tmp": "never part of a snapshot"})
    brought(job, target)
    assert seen(target) == {**seen(folder), "notes.tmp": "never part of a snapshot"}
    assert seen(elsewhere) == {"kept": "x"}


def test_what_is_unchanged_stays_and_is_not_fetched(folder: Path, job: Store, tmp_path: Path) -> None:
    target = tmp_path / "target"
    sync = uploader(folder, job)
    write(folder, a__b="1", c="2")
    sync.upload_pass(ended=True, died_ns=None)
    brought(job, target)
    first, inode = newest(job), (target / "a/b").stat().st_ino
    write(folder, c="3", d="4")
    sync.upload_pass(ended=True, died_ns=None)
    brought(job, target, first=first)
    assert seen(target) == seen(folder)
    assert (target / "a/b").stat().st_ino == inode
    # A program that wrote there meanwhile gets the snapshot's content back.
    write(target, a__b="own")
    brought(job, target, first=newest(job))
    assert seen(target) == seen(folder)


@pytest.mark.parametrize("by", [os.path.getmtime, os.path.getctime])
def test_the_newest_by_time_is_the_programs_newest(by, folder: Path, job: Store, tmp_path: Path) -> None:
    names = [f"run/{(7 * number) % 20}.pt" for number in range(20)]
    (folder / "run").mkdir()
    for age, name in enumerate(names):
        (folder / name).write_text(name)
        os.utime(folder / name, ns=(10**18 + age * 10**9,) * 2)
    uploader(folder, job).upload_pass(ended=True, died_ns=None)
    brought(job, tmp_path / "target")
    found = sorted((tmp_path / "target/run").iterdir(), key=by)
    assert [f"run/{path.name}" for path in found][-1] == names[-1]
    assert by is os.path.getctime or [f"run/{path.name}" for path in found] == names


def test_a_restore_of_many_small_files_asks_once_for_each(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    bucket, gate = Bucket(), Gate(before=asked.append)
    job = MemoryStore(bucket, gate)
    write(folder, **{f"{number}": "x" for number in range(50)})
    sync = uploader(folder, job)
    sync.upload_pass(ended=True, died_ns=None)
    asked.clear()
    write(folder, new="y")
    sync.upload_pass(ended=True, died_ns=None)
    assert len([request for request in asked if request.startswith("put")]) == 2, asked
    assert len(asked) <= 2 + 8, asked
    manifest = newest(job)
    asked.clear()
    assert put_back(job.below("checkpoints"), manifest, tmp_path / "target") is None
    assert len(asked) == 51


def test_tensorflows_state_file_comes_after_the_files_that_it_names(
    folder: Path, job: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloads end in any order, and a manifest may have no times."""
    write(folder, checkpoint='model_checkpoint_path: "ckpt-1"\n', **{"ckpt-1.index": "1", "ckpt-1.data": "1"})
    uploader(folder, job).upload_pass(ended=True, died_ns=None)
    manifest, moved = newest(job), []
    timeless = replace(manifest, files=tuple(replace(f, mtime_ns=UNKNOWN_TIME) for f in manifest.files))
    rename = Path.rename

    def arrives_first(*args: object) -> str | None:
        fault = fetch_files(*args)
        os.utime(args[2] / "checkpoint", ns=(1, 1))
        return fault

    def noted(source: Path, target: Path) -> Path:
        moved.append(target.name)
        return rename(source, target)

    monkeypatch.setattr("dtj_trainer.artifacts.put_back.fetch_files", arrives_first)
    monkeypatch.setattr(Path, "rename", noted)
    assert put_back(job.below("checkpoints"), timeless, tmp_path / "target") is None
    assert moved[-1] == "checkpoint"
    assert set(moved) >= {"ckpt-1.index", "ckpt-1.data"}
