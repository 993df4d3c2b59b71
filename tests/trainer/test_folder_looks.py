"""Looks at a real folder."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from tests.trainer.conftest import until

from dtj_trainer.artifacts.capture import SECOND, Capture, FolderState, Waits
from dtj_trainer.artifacts.folder_captures import FolderLooks
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE, RECORD_FILE


@pytest.fixture
def looks(tmp_path: Path) -> FolderLooks:
    made = FolderLooks(tmp_path)
    made.start()
    return made


def test_an_absolute_link_through_another_name_of_the_folder_stays_inside(tmp_path: Path) -> None:
    real, named = tmp_path / "volume/run-7", tmp_path / "output"
    (real / "step-5").mkdir(parents=True)
    named.symlink_to(real)
    (named / "latest").symlink_to(f"{named}/step-5")
    (named / "step-5/again").symlink_to(f"{named}/latest")
    (named / "out").symlink_to(f"{tmp_path}/volume")
    (named / "around").symlink_to(f"{named}/../run-8")
    nodes = FolderLooks(real).look().nodes
    assert {path: node.target for path, node in nodes.items() if node.kind == "link"} == {
        "latest": "step-5",
        "step-5/again": "../latest",
    }


def test_a_look_has_files_folders_and_links_that_stay_inside(
    tmp_path: Path, looks: FolderLooks, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (
        "a/b/c.bin",
        "a/.metadata",
        ".metadata",
        "x.tmp",
        "a/y.part",
        ".cache/z",
        "e.tfevents.1",
        ".nfs0001",
        "é.bin",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"1")
    (tmp_path / "a" / RECORD_FILE).touch()
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, target in {
        "a/in": "../é.bin",
        "last": "a",
        "up": "../x",
        "root": "/etc",
        "a/absolute": f"{tmp_path}/a/b",
        "around": "a/../../x",
        "broken": "nothing",
    }.items():
        (tmp_path / name).symlink_to(target)

    found = [looks.look().nodes for _ in range(2)][1]

    assert {path: node.kind for path, node in found.items() if node.kind != "file"} == {
        "a": "directory",
        "a/b": "directory",
        "empty": "directory",
        "a/in": "link",
        "a/absolute": "link",
        "last": "link",
        "broken": "link",
    }
    assert {path for path, node in found.items() if node.kind == "file"} == {
        "a/b/c.bin",
        "a/.metadata",
        ".metadata",
        "é.bin",
    }
    assert found["a/in"].target == "../é.bin"
    assert found["a/absolute"].target == "../a/b"
    assert len(caplog.records) == 3
    assert "checkpoints/up is not saved: the link leads to ../x, outside of the folder" in caplog.text


def test_a_look_knows_open_files_renames_archives_and_marks(tmp_path: Path, looks: FolderLooks) -> None:
    looks.look()
    (tmp_path / "new.tmp").write_bytes(b"1")
    (tmp_path / "new.tmp").rename(tmp_path / "new.bin")
    with zipfile.ZipFile(tmp_path / "whole.pt", "w") as archive:
        archive.writestr("data", b"1" * 1000)
    (tmp_path / "torn.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:500])
    (tmp_path / "50").mkdir()
    (tmp_path / "50" / MARK_FILE).write_text('{"step": 50}')
    until(lambda: looks.look().renamed == {"new.bin"}, "the rename is seen")
    with (tmp_path / "open.bin").open("wb") as content:
        found = looks.look()
        assert found.open == {os.fstat(content.fileno()).st_ino}
    assert found.archives == {"whole.pt": True, "torn.pt": False}
    assert found.steps == {"50": 50}
    (tmp_path / "torn.pt").write_bytes((tmp_path / "whole.pt").read_bytes())
    (tmp_path / "whole.pt").unlink()
    assert looks.look().archives == {"torn.pt": True}


def test_a_folder_that_is_made_anew_is_watched_again(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    looks = FolderLooks(folder)
    looks.start()
    looks.look()
    folder.rmdir()
    folder.mkdir()

    def renamed() -> bool:
        (folder / ".new").write_text("1")
        (folder / ".new").rename(folder / "a")
        return looks.look().renamed == {"a"}

    until(renamed, "a rename is seen")


def test_captures_of_a_real_folder(tmp_path: Path, looks: FolderLooks) -> None:
    captures = FolderState(5 * SECOND)
    captures.see(looks.look())
    folder = tmp_path / "step-1.tmp"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"1")
    folder.rename(tmp_path / "step-1")

    def due() -> Capture | None:
        captures.see(looks.look())
        found = captures.capture()
        return None if isinstance(found, Waits) else found

    capture = until(due, "a capture")
    assert set(capture.nodes) == {"step-1", "step-1/model.bin"}


def test_a_folder_that_vanishes_in_a_look_is_absent(
    tmp_path: Path, looks: FolderLooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").touch()
    real = os.scandir

    def gone(path: Path) -> object:
        if path.name == "a":
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", gone)
    assert set(looks.look().nodes) == {"a"}
