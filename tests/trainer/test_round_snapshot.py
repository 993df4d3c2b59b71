"""All pods begin a round with one snapshot: real files, the pods' own servers, and a bucket in memory."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.trainer.conftest import until
from tests.trainer.loopback_pods import LoopbackPods, free_port
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints, other_pods, peers, restore, round_peers, round_snapshot, sync
from dtj_trainer.artifacts.folder_captures import walk
from dtj_trainer.artifacts.manifest import Manifest, StoredFile, sha256_of
from dtj_trainer.artifacts.peers import PeerServer
from dtj_trainer.artifacts.round_peers import NotPutBack, RoundPeers, hash_of, sources_above
from dtj_trainer.artifacts.round_snapshot import RoundSnapshots
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.snapshot import CheckpointIndex, folders_and_links, read_index
from dtj_trainer.artifacts.sync import PodSync, SyncSettings
from dtj_trainer.artifacts.sync_loop import SyncLoop
from dtj_trainer.contract.pod_info import Rounds
from dtj_trainer.launch.pod import Pod, PrerequisiteMissing
from dtj_trainer.launch.round_messages import Snapshot
from dtj_trainer.launch.settings import read_settings

State = dict[str, tuple[object, int]]


def state(folder: Path) -> State:
    found: State = {}
    for path in folder.rglob("*"):
        content: object = (
            path.readlink() if path.is_symlink() else "folder" if path.is_dir() else path.read_bytes()
        )
        found[str(path.relative_to(folder))] = content, path.lstat().st_mtime_ns
    return found


def write(folder: Path, **files: str) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


class OnePod:
    """One pod: what PodSync does in it, without programs."""

    def __init__(self, job: Job, number: int) -> None:
        self.root = job.folder / f"{job.name}-{number}"
        self.folder = self.root / "checkpoints"
        self.runs = True
        self.sync = PodSync(
            SyncSettings(
                root=self.root,
                config_dir=self.root / "config",
                uri=f"s3://memory/{job.name}" if job.bucket else None,
                part="other" if number else "primary",
                attempt=1,
                resume=job.resume,
                keep=3,
                settle_seconds=job.settle_seconds,
                pod=f"worker-{number}",
                peers=LoopbackPods.of(number, job.count, job.port) if job.count > 1 and job.serves else None,
                shards=job.count > 1,
                rounds=True,
                alone=job.count == 1,
            ),
            lambda _: job.step,
            programs_run=lambda: self.runs,
        )
        self.sync.make_folders()
        self.sync.restore(10)
        self.sync.start()

    def end(self, *, closed: bool = False) -> None:
        self.runs = False
        self.sync.end_round(closed=closed)

    def begin(self, snapshot: tuple[int, int, str] | None) -> None:
        self.sync.begin_round(snapshot)
        self.runs = True


class Job:
    """The pods of a job."""

    def __init__(
        self,
        folder: Path,
        count: int,
        *,
        bucket: bool | Bucket = True,
        resume: str = "Auto",
        serves: bool = True,
        name: str = "job",
        settle_seconds: float = 0.0,
    ) -> None:
        self.folder, self.count, self.resume, self.serves = folder, count, resume, serves
        self.settle_seconds = settle_seconds
        self.step = 0
        self.began: int | None = None
        """The step of the snapshot that was named last."""
        self.down = ""
        """The bucket refuses requests that begin with this pattern."""
        self.requests: list[str] = []
        self.before: Callable[[str], None] = lambda _: None
        self.port = free_port() if count > 1 else 0
        self.name = name
        self.bucket = bucket if isinstance(bucket, Bucket) else Bucket() if bucket else None
        self.pods: list[OnePod] = []

    def store(self, uri: str = "") -> MemoryStore:
        def before(request: str) -> None:
            self.requests.append(request)
            self.before(request)
            if self.down and re.match(self.down, request):
                raise S3Error(request, transient=True)

        assert self.bucket
        return MemoryStore(self.bucket, Gate(before), uri.removeprefix("s3://memory/") or self.name)

    def start(self) -> None:
        self.pods = [OnePod(self, number) for number in range(self.count)]

    @property
    def first(self) -> OnePod:
        return self.pods[0]

    def saved(self, step: int, pod: int = 0, **files: str) -> None:
        """Write files, and wait until they are a complete capture."""
        source = self.pods[pod].sync._captures
        assert source
        with source.still:  # No capture is taken while files are written.
            self.step = step
            write(self.pods[pod].folder, **files)
        if pod == 0:
            until(self.is_whole, f"a capture of step {step}")

    def is_whole(self) -> bool:
        """Whether the newest capture is of the whole folder."""
        found = self.first.sync.newest_capture()
        now = {node.path: node for node in walk(self.first.folder)}
        return found is not None and found.capture.nodes == now and found.name.step == self.step

    def newest_step(self) -> int | None:
        found = self.first.sync.newest_capture()
        return found.name.step if found else None

    def end(self) -> None:
        for pod in self.pods:
            pod.end()

    def named(self) -> tuple[int, int, str] | None:
        found = self.first.sync.newest_snapshot()
        self.began = found[0].step if found else None
        return (found[0].claim, found[0].number, found[1]) if found else None

    def begin(self, snapshot: tuple[int, int, str] | None) -> None:
        with ThreadPoolExecutor(self.count) as pool:
            list(pool.map(lambda pod: pod.begin(snapshot), self.pods))

    def round(self) -> tuple[int, int, str] | None:
        self.end()
        snapshot = self.named()
        self.begin(snapshot)
        return snapshot

    def manifests(self) -> dict[int | None, Manifest]:
        """The newest manifest of each step. A capture may be taken while files are written."""
        return {each.step: each for each in reversed(self.index().newest_first())}

    def index(self) -> CheckpointIndex:
        return read_index(self.store().below("checkpoints"))

    def close(self) -> None:
        for pod in self.pods:
            pod.sync.close(5)


@contextmanager
def opened(job: Job, patch: pytest.MonkeyPatch) -> Iterator[Job]:
    patch.setattr(sync, "open_store", lambda uri, **_: job.store(uri))
    patch.setattr(restore, "open_store", lambda uri, **_: job.store(uri))
    patch.setattr(SyncLoop.__init__, "__defaults__", (0.02,))
    job.start()
    try:
        yield job
    finally:
        job.close()


MakeJob = Callable[..., Job]
SNAPSHOTS = r"put \d"
"""The uploads of snapshots."""


@pytest.fixture
def make_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeJob]:
    with ExitStack() as stack:

        def make(count: int = 2, **options: object) -> Job:
            job = Job(tmp_path, count, **options)  # type: ignore[arg-type]
            return stack.enter_context(opened(job, monkeypatch))

        yield make


@pytest.mark.parametrize("bucket", [True, False])
def test_the_newest_snapshot_counts_before_the_bucket_has_it(make_job: MakeJob, bucket: bool) -> None:
    job = make_job(3, bucket=bucket)
    job.down = SNAPSHOTS
    write(job.pods[1].folder, left="of another life", **{"x.tmp": "unfinished"})
    job.saved(7, run__a="1", run__empty__b="", last="run/a")
    (job.first.folder / "link").symlink_to("run/a")
    os.utime(job.first.folder / "run/a", ns=(10**18, 10**18))
    job.saved(8, c="3")
    before = state(job.first.folder)
    job.pods[1].folder.joinpath("left").unlink()
    snapshot = job.round()
    assert snapshot is not None
    assert job.began == 8
    assert [state(pod.folder) for pod in job.pods] == [before] * 3
    if bucket:
        assert job.manifests() == {}
        job.down = ""
        until(lambda: 8 in job.manifests(), "the manifest of the snapshot")
        assert {file.path for file in job.manifests()[8].files} == {
            path for path, (content, _) in before.items() if isinstance(content, bytes)
        }


def test_a_torn_file_gives_way_to_the_snapshot_before(make_job: MakeJob) -> None:
    job = make_job(2, bucket=False)
    job.saved(1, a="1")
    before = state(job.first.folder)
    with (job.first.folder / "b").open("w") as torn:
        torn.write("2")
        torn.flush()
        until(lambda: "b" in job.first.sync._captures.nodes, "a look at the torn file")
        job.end()
    snapshot = job.named()
    assert snapshot is not None
    assert job.began == 1
    job.begin(snapshot)
    assert [state(pod.folder) for pod in job.pods] == [before] * 2


def test_what_was_written_in_place_and_torn_comes_from_the_bucket(make_job: MakeJob) -> None:
    job = make_job()
    job.saved(1, model="1", other="o")
    until(lambda: 1 in job.manifests(), "the first manifest")
    before = state(job.first.folder)
    with (job.first.folder / "model").open("w") as torn:
        torn.write("torn")
        torn.flush()
        job.end()
    snapshot = job.named()
    assert snapshot is not None
    assert job.began == 1
    job.begin(snapshot)
    assert [state(pod.folder) for pod in job.pods] == [before] * 2


def test_without_any_complete_snapshot_all_begin_from_nothing(make_job: MakeJob) -> None:
    job = make_job(2, bucket=False)
    with (job.first.folder / "model").open("w") as torn:
        torn.write("torn")
        torn.flush()
        until(lambda: "model" in job.first.sync._captures.nodes, "a look at the torn file")
        assert job.round() is None
    assert [state(pod.folder) for pod in job.pods] == [{}] * 2


def test_what_is_newer_or_unfinished_goes_and_what_is_the_same_stays(make_job: MakeJob) -> None:
    job = make_job(2, bucket=False)
    job.saved(1, kept="k", renamed="r")
    assert job.round() is not None
    before = state(job.first.folder)
    inodes = [(pod.folder / "kept").stat().st_ino for pod in job.pods]
    first, second = (pod.folder for pod in job.pods)
    job.end()
    snapshot = job.named()
    (first / "renamed").rename(first / "old")
    write(first, renamed="another", newer__x="n", **{".7.tmp__x": "unfinished", "x.part": "unfinished"})
    write(second, kept="KEPT", later="l")
    (second / "events.out.tfevents.1").write_text("curves stay")
    assert snapshot is not None
    job.begin(snapshot)
    assert state(first) == before
    (second / "events.out.tfevents.1").unlink()
    assert state(second) == before
    assert (first / "kept").stat().st_ino == inodes[0]


def test_an_upload_in_progress_goes_on_and_does_not_delay_the_round(make_job: MakeJob) -> None:
    job, sending, go = make_job(), threading.Event(), threading.Event()

    def hold(request: str) -> None:
        if request == "put 4/a":
            sending.set()
            assert go.wait(60)

    job.before = hold
    job.saved(4, a="1", b="2")
    assert sending.wait(60)
    before = state(job.first.folder)
    snapshot = job.round()
    assert snapshot is not None
    assert job.began == 4
    assert job.manifests() == {}
    go.set()
    until(lambda: 4 in job.manifests(), "the manifest of the upload that went on")
    assert [request for request in job.requests if request.startswith("put 4/a")] == ["put 4/a"]
    assert [state(pod.folder) for pod in job.pods] == [before] * 2
    assert sorted(job.manifests()) == [4]


def test_after_a_round_new_checkpoints_are_sent_gently_and_once(make_job: MakeJob) -> None:
    job = make_job()
    job.saved(1, a="1")
    until(lambda: 1 in job.manifests(), "the first manifest")
    job.round()
    assert job.first.sync._pace.gentle
    assert all(loop._in_background and loop._died_ns is None for loop in job.first.sync._loops)
    job.saved(2, b="2")
    until(lambda: 2 in job.manifests(), "the second manifest")
    puts = [request for request in job.requests if re.match(SNAPSHOTS, request)]
    assert sorted(puts) == sorted(set(puts))
    assert sorted(job.manifests()) == [1, 2]
    found = job.first.sync.artifacts()["restored"]
    assert found["uri"] == "s3://memory/job/checkpoints/1"


def test_a_file_that_is_changed_before_it_was_sent_is_part_of_the_next_snapshot(make_job: MakeJob) -> None:
    job = make_job(1)
    job.down = SNAPSHOTS
    job.saved(1, a="1", b="1")
    assert job.round() is not None
    job.step = 2
    write(job.first.folder, a="2")
    job.down = ""
    until(lambda: 2 in job.manifests(), "the next manifest")
    assert {file.path for file in job.manifests()[2].files} == {"a", "b"}
    assert 1 not in job.manifests()


def test_older_folders_of_save_that_are_not_uploaded_stay(make_job: MakeJob, monkeypatch) -> None:
    job = make_job(1)
    job.down = SNAPSHOTS
    monkeypatch.setenv("DTJ_ROOT", str(job.first.root))
    monkeypatch.setenv("DTJ_ARTIFACTS_URI", "s3://not/pruned")
    for step, metric in ((1, 0.9), (2, 0.1)):
        checkpoints.save(step, lambda folder: (folder / "x").write_text("x"), metric=metric)
        until(lambda step=step: job.newest_step() == step, "a capture")
    snapshot = job.round()
    assert snapshot is not None
    assert job.began == 2
    job.down = ""
    until(lambda: sorted(job.manifests()) == [1, 2], "both manifests")


def test_what_another_job_gave_counts_until_there_is_something_newer(
    make_job: MakeJob, tmp_path: Path
) -> None:
    giver = make_job(1)
    giver.saved(40, a="1", b="2")
    until(lambda: 40 in giver.manifests(), "the manifest of the other job")
    giver.close()
    job = make_job(2, bucket=giver.bucket, resume="s3://memory/job/checkpoints", name="heir")
    before = state(job.first.folder)
    snapshot = job.round()
    assert snapshot is not None
    assert snapshot[0] == 0
    assert [state(pod.folder) for pod in job.pods] == [before] * 2
    assert job.first.sync.artifacts()["restored"]["uri"].startswith("s3://memory/job/checkpoints")
    job.saved(41, c="3")
    until(lambda: 41 in job.manifests(), "the first own manifest")
    newer = job.round()
    assert newer is not None
    assert newer > snapshot
    assert {file.path for file in job.manifests()[41].files} == {"a", "b", "c"}
    assert 40 not in job.manifests()


def test_files_on_demand_stay_in_the_bucket(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job()
    monkeypatch.setenv("DTJ_ROOT", str(job.first.root))
    monkeypatch.setenv("DTJ_ARTIFACTS_URI", "s3://not/pruned")

    def save(folder: Path) -> None:
        write(folder, now="n", **{"shard-0": "s"})

    job.step = 3
    checkpoints.save(3, save, on_demand="shard-*")
    until(lambda: 3 in job.manifests(), "the manifest")
    before = state(job.first.folder)
    assert job.round() is not None
    assert state(job.first.folder) == before
    other = state(job.pods[1].folder)
    assert before.keys() - other.keys() == {"3/shard-0"}
    assert other.keys() - before.keys() == {"3/.dtj-in-bucket.json"}
    assert job.round() is not None
    assert state(job.pods[1].folder).keys() == other.keys()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_snapshot, "UPLOAD_SECONDS", 0.1)


def test_files_of_other_pods_may_be_parts(make_job: MakeJob, impatient: None) -> None:
    job = make_job()
    job.saved(1, run_1__a="1")
    until(lambda: 1 in job.manifests(), "the first manifest")
    before = state(job.first.folder)
    job.down = "put"
    job.saved(2, pod=1, run_2__part_1="of another pod")
    job.saved(2, run_2__part_0="2")
    snapshot = job.round()
    assert snapshot is not None
    assert job.began == 1
    assert [state(pod.folder) for pod in job.pods] == [before] * 2


def test_a_later_checkpoint_of_another_pod_is_no_part(make_job: MakeJob) -> None:
    """A script that saves in each pod may have begun the next checkpoint in one of them."""
    job = make_job(2, bucket=False)
    write(job.pods[1].folder, run_1__a="1", run_2__a="2")
    job.saved(1, run_1__a="1")
    before = state(job.first.folder)
    assert job.round() is not None
    assert [state(pod.folder) for pod in job.pods] == [before] * 2


def test_parts_without_a_bucket_end_the_rounds(make_job: MakeJob) -> None:
    job = make_job(2, bucket=False)
    write(job.pods[1].folder, run__part_1="1")
    job.saved(1, run__part_0="0")
    job.end()
    with pytest.raises(NotPutBack, match=r"127.0.0.3 has 1 files that the checkpoint lacks"):
        job.named()
    assert (job.pods[1].folder / "run/part_1").exists()


def test_a_snapshot_with_parts_counts_as_soon_as_it_is_uploaded(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_pods, "FIRST_WORDS_SECONDS", 0.0)
    job = make_job()
    job.down = SNAPSHOTS
    write(job.pods[1].folder, run_1__part_1="1")
    until(lambda: "put parts/1/worker-1.json" in job.requests, "the first words of the other pod")
    job.saved(1, run_1__part_0="0")
    job.end()
    with ThreadPoolExecutor(1) as pool:
        named = pool.submit(job.named)
        job.down = ""
        snapshot = named.result(60)
    assert snapshot is not None
    job.begin(snapshot)
    found = [state(pod.folder) for pod in job.pods]
    assert found[0] == found[1]
    assert {"run_1/part_0", "run_1/part_1"} <= found[0].keys()


def test_without_the_port_of_the_pods_the_uploaded_snapshot_counts(
    make_job: MakeJob, impatient: None
) -> None:
    job = make_job(2, serves=False)
    job.saved(1, a="1")
    until(lambda: 1 in job.manifests(), "the first manifest")
    before = state(job.first.folder)
    job.down = "put"
    job.saved(2, b="2")
    snapshot = job.round()
    assert snapshot is not None
    assert job.began == 1
    assert [state(pod.folder) for pod in job.pods] == [before] * 2


class Liar:
    """A pod of rank 0 that offers what it likes."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.server = PeerServer(LoopbackPods.of(0, 2, port))
        self.server.start()
        self.folder = folder / "checkpoints"
        self.folder.mkdir()
        write(self.folder, mine="1")
        self.hosts = LoopbackPods.of(1, 2, port)
        self.own = PeerServer(self.hosts)
        self.victim = self.pod(self.folder)

    def pod(self, folder: Path) -> RoundSnapshots:
        """Another pod with this folder."""
        return RoundSnapshots(
            folder, None, attempt=1, alone=False, hosts=self.hosts, server=self.own, patience=0.0
        )

    def offers(self, manifest: Manifest, sha256: str = "", **contents: bytes) -> None:
        files: dict[str, tuple[int, list[Path]]] = {}
        for number, file in enumerate(manifest.files):
            place = self.folder.parent / f"lie-{number}"
            place.write_bytes(contents.get(file.path, b"x" * max(file.size, 0)))
            files[file.sha256] = (file.size, [place])
        self.server.files.offer_round(sha256 or hash_of(manifest)[0], manifest.to_json(), files)

    def refused(self, sha256: str, claim: int = 1, number: int = 7) -> str:
        before = state(self.folder)
        with pytest.raises(NotPutBack) as refusal:
            self.victim.put_back(claim, number, sha256, 0.0, lambda _: set())
        assert state(self.folder) == before
        return str(refusal.value)


@pytest.fixture
def liar(tmp_path: Path) -> Iterator[Liar]:
    made = Liar(tmp_path)
    yield made
    made.server.close()
    made.own.close()


def manifest_of(*files: StoredFile) -> Manifest:
    return Manifest(7, 7, "2026-01-01T00:00:00Z", 1, files)


FILE = StoredFile("a", "", 3, "0" * 64, 5)


def test_a_manifest_with_another_hash_is_refused(liar: Liar) -> None:
    liar.offers(manifest_of(FILE), "1" * 64)
    assert f"the SHA-256 of the manifest is not {'1' * 64}" in liar.refused("1" * 64)


def test_a_file_with_another_hash_is_refused(liar: Liar) -> None:
    liar.offers(manifest_of(FILE))
    assert "no other pod sends a," in liar.refused(hash_of(manifest_of(FILE))[0])


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (replace(FILE, path="../a"), "outside the checkpoints folder"),
        (replace(FILE, path="/a"), "outside the checkpoints folder"),
        (replace(FILE, size=-1), "a negative size for"),
        (replace(FILE, size=2**62), "bytes free"),
    ],
)
def test_a_manifest_that_no_restore_writes_is_refused(liar: Liar, file: StoredFile, said: str) -> None:
    manifest = manifest_of(file)
    content = manifest.to_json()
    name = hash_of(manifest)[0]
    liar.server.files.offer_round(name, content, {})
    assert said in liar.refused(name)


def test_a_manifest_of_another_snapshot_is_refused(liar: Liar) -> None:
    liar.offers(manifest_of(FILE))
    assert "not of checkpoint 8" in liar.refused(hash_of(manifest_of(FILE))[0], number=8)


def test_nobody_gives_anything(liar: Liar) -> None:
    assert "no other pod sends the manifest" in liar.refused("2" * 64)


def test_a_pod_that_is_busy_is_asked_again_for_longer_than_the_patience(
    liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, pauses = manifest_of(), list[float]()
    liar.offers(manifest)
    monkeypatch.setattr(peers, "TRANSFERS", 0)

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        monkeypatch.setattr(peers, "TRANSFERS", 1)

    monkeypatch.setattr(round_peers, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
    found = RoundPeers(liar.hosts, patience=0.0).manifest(hash_of(manifest)[0])
    assert (found, len(pauses)) == (manifest, 1)


def test_a_stranger_who_knows_no_manifest_learns_nothing(make_job: MakeJob) -> None:
    job = make_job(2, bucket=False)
    write(job.pods[1].folder, secret="1")
    assert job.pods[1].sync._rounds is not None
    assert job.pods[1].sync._rounds.lacking("3" * 64) is None


def test_a_tree_below_the_pod_of_rank_0() -> None:
    assert sources_above(0, 5000) == []
    assert sources_above(1, 5000) == sources_above(2, 5000) == [0]
    assert sources_above(6, 7) == [2, 0]
    assert max(len(sources_above(pod, 5000)) for pod in range(5000)) == 12


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_hundred_rounds_leave_nothing_behind(make_job: MakeJob) -> None:
    job = make_job()

    def one(number: int) -> None:
        if number % 20 == 1:
            job.saved(number, **{f"a{number % 2}": str(number), "b": "same"})
        write(job.pods[1].folder, **{"x.tmp": "left", "y.part": "left"})
        assert job.round() is not None

    def threads() -> int:
        return len([t for t in threading.enumerate() if not t.name.startswith(("peers request", "watch"))])

    for number in range(1, 6):
        one(number)
    until(lambda: 1 in job.manifests(), "a manifest")
    before, descriptors = threads(), open_files()
    for number in range(6, 106):
        one(number)
    until(lambda: 101 in job.manifests(), "the last manifest")
    until(lambda: threads() <= before, "the end of threads")
    until(lambda: open_files() <= descriptors + 2, "the end of descriptors")
    for pod in job.pods:
        assert {path.name for path in pod.folder.iterdir()} == {"a1", "b"}
        assert sorted(path.name for path in pod.root.iterdir() if path.name.startswith(".")) == []


NAMES = st.sampled_from(["a", "b", "c", "d-1", "d-2"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TREES = st.dictionaries(PATHS, st.sampled_from(["", "1", "22", "-> a", "folder"]), max_size=8)


def grown(folder: Path, tree: dict[str, str]) -> None:
    """Write what of a tree has a place."""
    for path, content in tree.items():
        at = folder / path
        try:
            at.parent.mkdir(parents=True, exist_ok=True)
            if content == "folder":
                at.mkdir(exist_ok=True)
            elif content.startswith("->"):
                at.symlink_to(content[3:])
            else:
                at.write_text(content)
        except OSError:
            continue


def capture_of(folder: Path) -> Manifest:
    """The manifest of a folder that no bucket has."""
    nodes = {node.path: node for node in walk(folder)}
    files = tuple(
        StoredFile(path, "", node.size, sha256_of(folder / path), node.mtime_ns)
        for path, node in nodes.items()
        if node.kind == "file"
    )
    return Manifest(1, 1, "2026-01-01T00:00:00Z", 1, files, *folders_and_links(nodes))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TREES, TREES, TREES)
def test_both_folders_become_the_snapshot_whatever_they_were(
    tmp_path: Path, liar: Liar, saved: dict[str, str], later: dict[str, str], other: dict[str, str]
) -> None:
    """The pod of rank 0, whose folder has changed since, and another pod, from what the first one had."""
    folders = [liar.folder, tmp_path / "other"]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    grown(folders[0], saved)
    manifest, before = capture_of(folders[0]), state(folders[0])
    kept = {file.sha256: (folders[0] / file.path).read_bytes() for file in manifest.files}
    liar.offers(manifest, **{file.path: kept[file.sha256] for file in manifest.files})
    grown(folders[0], later)
    grown(folders[1], other)
    for folder in folders:
        liar.pod(folder).put_back(1, 1, hash_of(manifest)[0], 0.0, lambda _: set())
        assert state(folder) == before


# --- the pod around it ---------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_a_file_written_in_place_counts_at_once_if_its_program_ended_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool, bucket: bool
) -> None:
    with opened(Job(tmp_path, 1, bucket=bucket, settle_seconds=60.0), monkeypatch) as job:
        write(job.first.folder, a="whole")
        until(lambda: job.first.sync._captures.nodes, "a look at the file")
        job.first.end(closed=closed)
        job.begin(job.named())
        assert [node.path for node in walk(job.first.folder)] == (["a"] if closed else [])
        if bucket and closed:
            until(job.manifests, "the snapshot in the bucket")


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    info = contract.PodInfo(
        role="worker", index=0, slots=1, part="primary", restores=True, rounds=Rounds(0, 3)
    )
    made = Pod(
        read_settings(
            {
                contract.ENV_POD: info.to_json(),
                "DTJ_ROOT": str(tmp_path),
                "DTJ_CONFIG_DIR": str(tmp_path / "config"),
                "DTJ_TERMINATION_LOG": str(tmp_path / "termination"),
                "DTJ_CHECKPOINT_SETTLE_SECONDS": "0",
            }
        ),
        log_names=None,
    )
    made.prepare()
    made.open()
    yield made
    made.close()


def test_what_belongs_to_a_round_begins_anew(pod: Pod, tmp_path: Path) -> None:
    file = pod._settings.progress_file
    write(tmp_path / "checkpoints", a="1")
    file.write_text(json.dumps({"step": 5}))
    pod.phases.reached("programStarted")
    until(lambda: "firstStep" in pod.report()["phases"], "the first step")
    until(lambda: pod._sync.newest_capture(), "a capture")
    started = pod.report()["phases"]["started"]
    pod.end_round(closed=False)
    snapshot = pod.newest_snapshot()
    assert isinstance(snapshot, Snapshot)
    pod.begin_round(1, snapshot)
    assert not file.exists()
    report = pod.report()
    assert report["phases"].keys() == {"started", "restored"}
    assert report["phases"]["started"] == started
    assert "progress" not in report
    assert "restarts" not in report
    pod.restarts = {"count": 1, "failure": {"class": "Signal", "message": "killed"}}
    assert pod.report()["restarts"]["count"] == 1
    file.write_text(json.dumps({"step": 3}))
    until(lambda: "firstStep" in pod.report()["phases"], "the first step of the round")
    assert pod._watch.step_at(0) == 3


def test_a_snapshot_that_nobody_has_is_a_missing_prerequisite(pod: Pod) -> None:
    pod.end_round(closed=False)
    with pytest.raises(PrerequisiteMissing, match=r"round 1 can't begin with checkpoint 5 of claim 1: "):
        pod.begin_round(1, Snapshot(1, 5, "0" * 64))
    pod.begin_round(1, None)
