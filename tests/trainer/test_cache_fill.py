"""What a pod uploads is in the node's cache afterwards, without a wait of the upload, whatever the cache does."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.conftest import BUCKET, ObjectStore, until
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer import contract
from dtj_trainer.artifacts import cache_fill, checkpoints, pod_sync
from dtj_trainer.artifacts.cache_fill import CacheFill
from dtj_trainer.artifacts.checkpoint_cache import CheckpointCache
from dtj_trainer.artifacts.checkpoint_parts import PartUploader
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence
from dtj_trainer.artifacts.file_fetch import Near
from dtj_trainer.artifacts.pod_sync import PodSync
from dtj_trainer.artifacts.restore import restore
from dtj_trainer.launch.pod import sync_settings
from dtj_trainer.launch.settings import read_settings

SIZE = 300_000
LIMIT = 10**8


class Pod:
    """A pod that uploads into a bucket in memory, with its node's cache. `gets`: the GETs by file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, limit: int = LIMIT) -> None:
        self.bucket, self.gets = Bucket(), Counter[str]()
        self._folder, self._limit = folder, limit
        monkeypatch.setenv("DTJ_ROOT", str(folder / "pod"))
        monkeypatch.setenv("DTJ_ARTIFACTS_URI", "s3://not/pruned")
        self.cache_folder = folder / "cache"
        self.fill = CacheFill(self.cache(), folder / "pod/checkpoints")
        self.store = MemoryStore(self.bucket, Gate(self._count))
        self.fence = Fence(self.store, contract.CLAIM_FILE, 1)
        self._uploader = CheckpointUploader(
            folder / "pod/checkpoints",
            self.store.below("checkpoints"),
            fence=self.fence,
            keep=3,
            settle_seconds=0,
            step_at=lambda _: None,
            fill=self.fill,
        )

    def _count(self, request: str) -> None:
        verb, _, key = request.partition(" ")
        if verb == "get":
            self.gets[key.rpartition("/")[2]] += 1

    def cache(self) -> CheckpointCache:
        return CheckpointCache(self.cache_folder, self._limit)

    def save(self, step: int, parts: int = 1) -> bytes:
        content = os.urandom(SIZE)
        checkpoints.save(step, lambda folder: write(folder / f"{step}.pt", content), parts=parts)
        return content

    def upload(self) -> None:
        assert self._uploader.upload_pass(ended=True, died_ns=None)

    def restored(self, name: str) -> Path:
        """Restore in a pod of the node. Returns the checkpoints folder."""
        folder = self._folder / name
        folder.mkdir()
        self.gets.clear()
        assert restore(self.store.below("checkpoints"), folder, "Auto", Near(self.cache()))
        return folder

    def cached(self) -> list[Path]:
        return [path for path in self.cache_folder.glob("[0-9a-f][0-9a-f]/*") if path.stat().st_size >= SIZE]


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    return Pod(tmp_path, monkeypatch)


@pytest.mark.parametrize("way", ["copy_file_range", "sendfile"])
def test_a_restart_on_the_node_reads_nothing_but_the_manifest(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EXDEV, "no")

    if way == "sendfile":
        monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(cache_fill, "_PIECE_BYTES", 100_001)
    content = pod.save(5)
    pod.upload()
    pod.fill.finish(60)
    assert (pod.restored("again") / "5/5.pt").read_bytes() == content
    assert pod.gets.keys() == {"manifest.json"}


def test_the_newest_checkpoint_takes_the_place_of_the_one_before(pod: Pod) -> None:
    for step in (1, 2, 3):
        content = pod.save(step)
        pod.upload()
        pod.fill.finish(60)
    assert [path.read_bytes() for path in pod.cached()] == [content]


def test_the_upload_does_not_wait_for_the_cache(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    go, add = threading.Event(), CheckpointCache.add

    def slow(*given: Any) -> bool:
        assert go.wait(60)
        return add(*given)

    monkeypatch.setattr(CheckpointCache, "add", slow)
    for step in (1, 2, 3):
        content = pod.save(step)
        pod.upload()
        assert f"job/checkpoints/{step}/manifest.json" in pod.bucket.objects
    pod.fill.finish(0.01)
    assert pod.cached() == []
    go.set()
    pod.fill.finish(60)
    until(lambda: [path.read_bytes() for path in pod.cached()] == [content], "the newest checkpoint alone")


@pytest.mark.parametrize(
    "change", [Path.unlink, lambda path: path.write_bytes(b"x" * SIZE)], ids=["removed", "changed"]
)
def test_a_file_that_changed_since_its_upload_is_left_out(
    pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    go, add = threading.Event(), CheckpointCache.add

    def later(*given: Any) -> bool:
        assert go.wait(60)
        return add(*given)

    monkeypatch.setattr(CheckpointCache, "add", later)
    pod.save(5)
    pod.upload()
    change(tmp_path / "pod/checkpoints/5/5.pt")
    go.set()
    pod.fill.finish(60)
    assert pod.cached() == []
    assert not list(pod.cache_folder.glob("**/*.writing"))


def test_a_checkpoint_of_most_of_the_cache_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = Pod(tmp_path, monkeypatch, limit=2 * SIZE)
    pod.save(5)
    pod.upload()
    pod.fill.finish(60)
    assert pod.cached() == []


def test_a_cache_that_can_not_be_written_costs_a_warning(pod: Pod, caplog: pytest.LogCaptureFixture) -> None:
    pod.cache_folder.write_text("no folder")
    for step in (1, 2):
        pod.save(step)
        pod.upload()
        pod.fill.finish(60)
    assert caplog.text.count("is not used for checkpoints") == 1


def test_a_pod_keeps_its_part_of_a_checkpoint(pod: Pod, tmp_path: Path) -> None:
    pod.fence.hold()
    uploader = PartUploader(
        tmp_path / "pod/checkpoints",
        pod.store,
        pod.store.below("checkpoints"),
        claim_key=contract.CLAIM_FILE,
        attempt=1,
        keep=3,
        pod="worker-1",
        fill=pod.fill,
    )
    content = pod.save(5, parts=2)
    assert uploader.upload_pass(ended=True, died_ns=None)
    pod.fill.finish(60)
    assert [path.read_bytes() for path in pod.cached()] == [content]


def test_the_last_checkpoint_of_a_pod_is_in_the_cache_when_it_ends(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_sync, "FILL_SECONDS", 60.0)
    root, cache = tmp_path / "pod", tmp_path / "cache"
    variables = {
        "DTJ_ROOT": str(root),
        "DTJ_ARTIFACTS_URI": f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}",
        "DTJ_POD": contract.PodInfo(role="worker", index=0, slots=1, part="primary", restores=True).to_json(),
        "DTJ_CHECKPOINT_CACHE": str(cache),
        "DTJ_DATA_CACHE_BYTES": str(LIMIT),
    }
    for name in ("DTJ_ROOT", "DTJ_ARTIFACTS_URI"):
        monkeypatch.setenv(name, variables[name])
    sync = PodSync(sync_settings(read_settings(variables), log_names=None), lambda _: None)
    sync.make_folders()
    sync.restore(timeout=60)
    sync.start()
    content = os.urandom(SIZE)
    checkpoints.save(5, lambda folder: write(folder / "state.pt", content))
    sync.finish(60, ended=True)
    sync.close()
    assert content in [path.read_bytes() for path in cache.glob("[0-9a-f][0-9a-f]/*")]
