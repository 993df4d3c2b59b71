"""Restores of pods with one cache: each file comes from the bucket once, verified, within the cache's limit."""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.trainer.conftest import BUCKET, ObjectStore, upload_saved
from tests.trainer.differing_store import differing_store
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoint_cache, checkpoints
from dtj_trainer.artifacts.checkpoint_cache import CheckpointCache, cache_from_environment
from dtj_trainer.artifacts.file_fetch import Near
from dtj_trainer.artifacts.local_checkpoints import read_mark
from dtj_trainer.artifacts.pod_sync import PodSync
from dtj_trainer.artifacts.restore import restore
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.store import Store, open_store
from dtj_trainer.launch.pod import sync_settings
from dtj_trainer.launch.settings import read_settings

STATE, OTHER = b"\1\2\3\4" * 300_000, b"\5" * 200_000
SIZE = len(STATE) + len(OTHER)


def save(job: Store, root: Path, monkeypatch: pytest.MonkeyPatch, step: int = 5) -> None:
    """Upload a checkpoint of two files and its mark."""
    monkeypatch.setenv("DTJ_ROOT", str(root))
    monkeypatch.setenv("DTJ_ARTIFACTS_URI", "s3://not/pruned")

    def write(folder: Path) -> None:
        (folder / "state.pt").write_bytes(STATE)
        (folder / "other.pt").write_bytes(OTHER)

    checkpoints.save(step, write)
    upload_saved(job, root)


class Pods:
    """Pods of one node that restore from one bucket in memory. `gets`: the GETs by the last part of their keys."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bucket, self.gets = Bucket(), Counter[str]()
        self.before: Callable[[str], None] = lambda _: None
        self.cache = tmp_path / "cache"
        self._folder = tmp_path
        self._lock = threading.Lock()
        save(self._store(), tmp_path / "saved", monkeypatch)
        self.gets.clear()

    def _store(self) -> Store:
        return MemoryStore(self.bucket, Gate(self._count))

    def _count(self, request: str) -> None:
        self.before(request)
        verb, _, key = request.partition(" ")
        if verb == "get":
            with self._lock:
                self.gets[key.rpartition("/")[2]] += 1

    def restore(self, number: int, limit: int = 10**8) -> CheckpointCache:
        """Restore in one pod, and compare what it has."""
        cache, folder = CheckpointCache(self.cache, limit), self._folder / f"pod-{number}" / "checkpoints"
        folder.mkdir(parents=True)
        assert restore(self._store().below("checkpoints"), folder, "Auto", Near(cache))
        assert (folder / "5/state.pt").read_bytes() == STATE
        assert (folder / "5/other.pt").read_bytes() == OTHER
        assert read_mark(folder / "5")
        return cache

    def damage(self, content: Callable[[Path], int | None]) -> None:
        for path in self.cached():
            content(path)

    def cached(self) -> list[Path]:
        return [path for path in self.cache.glob("[0-9a-f][0-9a-f]/*") if path.stat().st_size > 1000]


def instead(path: Path) -> Path:
    path.unlink()
    return path


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pods:
    return Pods(tmp_path, monkeypatch)


def test_pods_that_restore_at_once_fetch_each_file_once_and_different_files_at_a_time(pods: Pods) -> None:
    both = threading.Barrier(2)

    def meet(request: str) -> None:
        if request in ("get state.pt", "get other.pt"):
            both.wait(60)  # Neither comes before the other is asked for: a convoy would break the barrier.

    pods.before = meet
    with ThreadPoolExecutor(4) as pool:
        copied = sum(cache.bytes_copied for cache in pool.map(pods.restore, range(4)))
    assert {name: pods.gets[name] for name in ("state.pt", "other.pt")} == {"state.pt": 1, "other.pt": 1}
    assert copied >= 3 * SIZE
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in pods.cached())


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"short"),
        lambda path: path.write_bytes(b"\0" * path.stat().st_size),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        lambda path: instead(path).symlink_to("/dev/zero"),
        lambda path: os.mkfifo(instead(path)),
        lambda path: instead(path).mkdir(),
    ],
    ids=["short", "other content", "long", "link", "pipe", "folder"],
)
def test_what_another_pod_damaged_comes_from_the_bucket(
    pods: Pods, damage: Callable[[Path], int | None]
) -> None:
    pods.restore(0)
    pods.damage(damage)
    pods.restore(1)
    assert (pods.gets["state.pt"], pods.gets["other.pt"]) == (2, 2)


def test_a_damaged_file_is_replaced_for_later_pods(pods: Pods) -> None:
    pods.restore(0)
    pods.damage(lambda path: path.write_bytes(b"\0" * path.stat().st_size))
    pods.restore(1)
    assert pods.restore(2).bytes_copied >= SIZE
    assert pods.gets["state.pt"] == 2


def test_a_pod_whose_copy_is_verified_does_not_share_the_file(pods: Pods, tmp_path: Path) -> None:
    pods.restore(0)
    pods.restore(1)
    pods.damage(lambda path: path.write_bytes(b"later"))
    assert (tmp_path / "pod-1/checkpoints/5/state.pt").read_bytes() == STATE


def test_a_damaged_file_in_the_bucket_reaches_no_cache(pods: Pods) -> None:
    pods.bucket.objects["job/checkpoints/5/state.pt"] = STATE[::-1]
    with pytest.raises(S3Error, match=r"state\.pt is damaged"):
        pods.restore(0)
    assert all(path.stat().st_size == len(OTHER) for path in pods.cached())


def test_a_pod_that_died_while_it_fetched_holds_nobody_up(pods: Pods) -> None:
    def die(request: str) -> None:
        if request == "get state.pt":
            raise SystemExit

    pods.before = die
    with pytest.raises(SystemExit):
        pods.restore(0)
    pods.before = lambda _: None
    pods.restore(1)
    assert pods.restore(2).bytes_copied >= SIZE


def test_a_pod_waits_only_so_long_for_another(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_cache, "WAIT_SECONDS", 0.2)
    stuck, go = threading.Event(), threading.Event()

    def hang(request: str) -> None:
        if request == "get state.pt" and not stuck.is_set():
            stuck.set()
            assert go.wait(60)

    pods.before = hang
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(pods.restore, 0)
        try:
            assert stuck.wait(60)
            pods.restore(1)
            assert not first.done()
        finally:
            go.set()
        first.result()
    assert pods.gets["state.pt"] == 2


def test_the_cache_keeps_its_limit_and_takes_no_checkpoint_of_most_of_it(pods: Pods) -> None:
    pods.restore(0, limit=2 * SIZE - 1000)
    assert not pods.cached()
    limit = 3 * SIZE
    pods.restore(1, limit=limit)
    for path in pods.cached():
        old = path.with_name("old")
        old.write_bytes(b"\0" * SIZE)
        os.utime(old, (1, 1))
    for path in pods.cached():
        if path.name != "old":
            path.unlink()
    pods.restore(2, limit=limit)
    assert sum(path.stat().st_size for path in pods.cached()) <= limit
    assert pods.restore(3, limit=limit).bytes_copied >= SIZE


def test_a_cache_that_can_not_be_written_costs_a_warning(
    pods: Pods, caplog: pytest.LogCaptureFixture
) -> None:
    pods.cache.write_text("no folder")
    pods.restore(0)
    assert caplog.text.count("is not used for checkpoints") == 1


def test_the_variables_of_the_pod() -> None:
    assert cache_from_environment({"DTJ_DATA_CACHE": "/x", "DTJ_DATA_CACHE_BYTES": "9"}) is None
    with pytest.raises(ValueError, match="DTJ_DATA_CACHE_BYTES must be a number of bytes, got '9Gi'"):
        cache_from_environment({"DTJ_CHECKPOINT_CACHE": "/x", "DTJ_DATA_CACHE_BYTES": "9Gi"})


@pytest.mark.parametrize("cached", [False, True], ids=["without a cache", "with a cache"])
def test_bytes_that_four_pods_of_a_node_read_from_the_bucket(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    uri = f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"
    save(open_store(uri), tmp_path / "saved", monkeypatch)
    cache = {"DTJ_CHECKPOINT_CACHE": str(tmp_path / "cache"), "DTJ_DATA_CACHE_BYTES": str(10**8)}

    def restored(number: int) -> bytes:
        root = tmp_path / f"pod-{number}"
        variables = {
            "DTJ_ROOT": str(root),
            "DTJ_ARTIFACTS_URI": uri,
            "DTJ_POD": contract.PodInfo(role="ps", index=number, restores=True).to_json(),
        }
        settings = read_settings(variables | (cache if cached else {}))
        sync = PodSync(sync_settings(settings, log_names=None), lambda _: None)
        sync.make_folders()
        assert sync.restore(timeout=60)
        return (root / "checkpoints/5/state.pt").read_bytes()

    with differing_store(object_store.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(restored, range(4))) == [STATE] * 4
        ranges = [
            asked.headers.get("Range", f"bytes=0-{len(OTHER) - 1}").removeprefix("bytes=").split("-")
            for asked in proxy.asked
            if asked.method == "GET" and asked.path.partition("?")[0].endswith(".pt")
        ]
    read = sum(int(last) + 1 - int(first) for first, last in ranges)
    print(f"4 pods read {read} bytes of a checkpoint of {SIZE} bytes from the bucket")
    assert read == (SIZE if cached else 4 * SIZE)
