"""The newest complete capture of a pod can be put back from the pod's own files, also without a bucket."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.trainer.memory_store import Bucket, Gate, MemoryStore
from tests.trainer.test_put_back import seen, uploader, write

from dtj_trainer.artifacts.capture import Node
from dtj_trainer.artifacts.manifest import sha256_of
from dtj_trainer.artifacts.newest_capture import CaptureWatch, NewestCapture, sources_of
from dtj_trainer.artifacts.put_back import leave_only, put_back
from dtj_trainer.artifacts.round_snapshot import NoBucket
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def state(folder: Path) -> dict[str, tuple[str, int]]:
    return {path: (content, (folder / path).lstat().st_mtime_ns) for path, content in seen(folder).items()}


def watch(folder: Path) -> CaptureWatch:
    watching = CaptureWatch(folder, attempt=2, settle_seconds=0.0, step_at=lambda _: 40)
    watching.start()
    return watching


def put_back_newest(captures: NewestCapture, folder: Path, nodes: Mapping[str, Node], job: Store) -> None:
    """Put back the newest capture, as the pod of rank 0 does between two rounds."""
    found = captures.now(nodes)
    assert found is not None
    manifest = captures.manifest_of(found, nodes, 1, lambda path: sha256_of(folder / path))
    sources = {path: source for path, source in sources_of(found.capture, nodes).items() if source}
    present = {file.path: file for file in manifest.files if sources.get(file.path) == file.path}
    store = job.below("checkpoints")
    assert put_back(store, manifest, folder, present=present, sources=sources) is None
    leave_only(folder, manifest)


def first_save(folder: Path) -> None:
    write(folder, run__a="1", run__c__d="2", last="3", pointer="run")
    (folder / "empty").mkdir()
    (folder / "newest").symlink_to("run/a")
    os.utime(folder / "run/a", ns=(10**18, 10**18))


def renamed(folder: Path) -> None:
    (folder / "run/a").rename(folder / "run/old")
    write(folder, run__a="torn")


def replaced_by_rename(folder: Path) -> None:
    os.link(folder / "last", folder / "kept")
    write(folder, **{"last.new": "newer"})
    (folder / "last.new").replace(folder / "last")


def new_ones(folder: Path) -> None:
    write(folder, run__b="newer", other__x="newer", torn="")
    (folder / "newest").unlink()
    (folder / "newest").symlink_to("run/b")
    (folder / "empty").rmdir()


@pytest.mark.parametrize("later", [new_ones, renamed, replaced_by_rename])
def test_what_came_after_goes_and_the_rest_is_exactly_as_it_was(
    later: Callable[[Path], None], folder: Path
) -> None:
    watching = watch(folder)
    first_save(folder)
    watching.watch_pass(ended=True, died_ns=None)
    before = state(folder)
    found = watching.captures.now(watching.nodes)
    assert found is not None
    assert {key: value for key, value in found.reported().items() if key != "time"} == {
        "claim": 2,
        "number": 40,
        "step": 40,
        "uploaded": False,
    }
    later(folder)
    # The look after a kill finds nothing more that is complete.
    watching._folder.look(over=True)
    assert watching.captures.now(watching.nodes) == found
    put_back_newest(watching.captures, folder, watching.nodes, NoBucket())
    assert state(folder) == before


def test_a_file_that_was_written_in_place_gives_way_to_the_capture_before(folder: Path) -> None:
    watching = watch(folder)
    write(folder, first="1")
    watching.watch_pass(ended=True, died_ns=None)
    before = state(folder)
    write(folder, last="2")
    watching.watch_pass(ended=True, died_ns=None)
    write(folder, last="torn")
    watching._folder.look(over=True)
    found = watching.captures.now(watching.nodes)
    assert found is not None
    assert found.name.number == 40
    put_back_newest(watching.captures, folder, watching.nodes, NoBucket())
    assert state(folder) == before
    write(folder, first="torn")
    watching._folder.look(over=True)
    assert watching.captures.now(watching.nodes) is None


def test_a_capture_counts_before_the_bucket_has_it_and_the_bucket_gives_what_was_overwritten(
    folder: Path,
) -> None:
    down = False

    def refuse(request: str) -> None:
        if down:
            raise S3Error(request, transient=True)

    job = MemoryStore(Bucket(), Gate(before=refuse))
    sync = uploader(folder, job)
    write(folder, a="1", b="1")
    sync.upload_pass(ended=True, died_ns=None)
    uploaded = sync.captures.now(sync.nodes)
    assert uploaded is not None
    assert (uploaded.name.number, uploaded.uploaded) == (1, True)
    down = True
    write(folder, b="2", c="2")
    with pytest.raises(S3Error):
        sync.upload_pass(ended=True, died_ns=None)
    found, before = sync.captures.now(sync.nodes), state(folder)
    assert found is not None
    assert (found.name.number, found.uploaded) == (2, False)
    down = False
    write(folder, a="torn")  # The bucket has it.
    sync._captures.look(over=True)
    assert sync.captures.now(sync.nodes) == found
    put_back_newest(sync.captures, folder, sync.nodes, job)
    assert state(folder) == before
    write(folder, c="torn")  # Nobody has it.
    sync._captures.look(over=True)
    assert sync.captures.now(sync.nodes) == uploaded
