"""Checkpoint files that only some pods have, of programs that know nothing of dtj: whole snapshots, few requests."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer import contract
from dtj_trainer.artifacts import folder_captures, other_pods, pod_files_upload
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence
from dtj_trainer.artifacts.manifest import Manifest
from dtj_trainer.artifacts.multipart import Uploaded
from dtj_trainer.artifacts.other_pods import OtherPods
from dtj_trainer.artifacts.pod_files_upload import PodFilesUploader
from dtj_trainer.artifacts.restore import restore
from dtj_trainer.artifacts.sent_files import SentFiles
from dtj_trainer.artifacts.snapshot import read_index

PODS = 3


class Clock:
    """The waits of all pods."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wall_ns(self) -> int:
        return time.time_ns() + int((self.now - 1000) * 1e9)


class Job:
    """The pods of one attempt; pod 0 has the claim."""

    def __init__(self, root: Path, bucket: Bucket, clock: Clock, attempt: int = 1, keep: int = 3) -> None:
        self.requests: list[list[str]] = [[] for _ in range(PODS)]
        self.clock = clock
        self.gates = [Gate(before=asked.append) for asked in self.requests]
        stores = [MemoryStore(bucket, gate) for gate in self.gates]
        self.store = stores[0].below("checkpoints")
        self.fence = Fence(stores[0], contract.CLAIM_FILE, attempt)
        self.folders = [root / str(attempt) / str(pod) / contract.CHECKPOINTS for pod in range(PODS)]
        for folder in self.folders:
            folder.mkdir(parents=True)
        self.fence.hold()
        self.restored = [
            restore(store.below("checkpoints"), folder, "Auto")
            for store, folder in zip(stores, self.folders, strict=True)
        ]
        self.claimant = CheckpointUploader(
            self.folders[0],
            self.store,
            fence=self.fence,
            keep=keep,
            settle_seconds=0,
            step_at=lambda _: None,
            shards=True,
        )
        self.claimant._others = OtherPods(self.store, self.fence, shards=True, now=clock)
        self.claimant._removal._others = self.claimant._others
        self.others = [
            PodFilesUploader(
                folder,
                store,
                store.below("checkpoints"),
                claim_key=contract.CLAIM_FILE,
                attempt=attempt,
                pod=f"worker-{pod}",
                settle_seconds=0,
                now=clock,
            )
            for pod, (folder, store) in enumerate(zip(self.folders, stores, strict=True))
            if pod
        ]
        for uploader, found in zip((self.claimant, *self.others), self.restored, strict=True):
            if found and isinstance(uploader, CheckpointUploader):
                uploader.note_restored(found.manifest, own=True)
            elif found and isinstance(uploader, PodFilesUploader):
                uploader.note_restored(found.manifest)
        for asked in self.requests:
            asked.clear()

    def write(self, pod: int, name: str, content: str = "") -> None:
        path = self.folders[pod] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content or f"{name} of {pod}")

    def passes(self, *pods: int, ended: bool = False) -> list[bool]:
        uploaders = [self.claimant, *self.others]
        return [uploaders[pod].upload_pass(ended=ended, died_ns=None) for pod in pods or range(PODS)]

    def settle(self, seconds: float = 30, *, ended: bool = False) -> None:
        """Make passes until nothing more happens, for so many seconds."""
        until = self.clock.now + seconds
        while True:
            for _ in range(3):
                self.passes(ended=ended)
            if self.clock.now >= until:
                return
            self.clock.now += 5

    @property
    def snapshots(self) -> list[Manifest]:
        """The oldest first."""
        return read_index(self.store).newest_first()[::-1]

    def last(self) -> dict[str, str]:
        """The newest snapshot: the content of its files by path."""
        return {file.path: self.store.get_bytes(file.key).decode() for file in self.snapshots[-1].files}


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of the pods' waits, and of the looks at their folders."""
    made = Clock()
    monkeypatch.setattr(
        folder_captures, "time", SimpleNamespace(time_ns=made.wall_ns, monotonic=time.monotonic)
    )
    return made


@pytest.fixture
def job(tmp_path: Path, bucket: Bucket, clock: Clock) -> Job:
    return Job(tmp_path, bucket, clock)


def dcp(job: Job, step: int, *pods: int) -> None:
    """As `torch.distributed.checkpoint.save` writes, with rank 0's `.metadata` last."""
    for pod in pods or range(PODS):
        job.write(pod, f"step-{step}/__{pod}_0.distcp", f"{step} of {pod}")
    if 0 in (pods or range(PODS)):
        job.write(0, f"step-{step}/.metadata", f"{step}")


def each_writes(job: Job, content: str) -> None:
    """A file for each pod, whose name has the pod's number."""
    for pod in range(PODS):
        job.write(pod, f"state-{pod}.pt", content)


def shards_of(*steps: int) -> dict[str, str]:
    files = {f"step-{step}/__{pod}_0.distcp": f"{step} of {pod}" for step in steps for pod in range(PODS)}
    return files | {f"step-{step}/.metadata": f"{step}" for step in steps}


def test_all_shards_of_a_checkpoint_are_in_one_snapshot(job: Job, bucket: Bucket, tmp_path: Path) -> None:
    dcp(job, 1)
    job.passes(1, 2)
    assert job.passes(0) == [False]
    assert job.snapshots == []
    assert job.passes(1, 0) == [True, False]
    assert job.snapshots == []
    job.passes(2)
    job.clock.now += 10
    job.passes(0)
    assert job.last() == shards_of(1)
    dcp(job, 2)
    job.settle(60)
    assert [manifest.number for manifest in job.snapshots] == [1, 2]
    assert job.last() == shards_of(1, 2)
    folder = tmp_path / "restored"
    assert restore(MemoryStore(bucket, Gate()).below("checkpoints"), folder, "Auto")
    assert (folder / "step-2/__2_0.distcp").read_text() == "2 of 2"


def test_a_pod_without_files_makes_no_request_and_nobody_waits_for_it(job: Job) -> None:
    job.write(0, "epoch-1.pt")
    job.settle()
    assert job.requests[1] == job.requests[2] == []
    assert [request for request in job.requests[0] if "parts" in request] == [
        "put parts/1/0.json",
        "list parts",
    ]
    assert job.last() == {"epoch-1.pt": "epoch-1.pt of 0"}


def test_files_that_every_pod_writes_are_sent_once(job: Job) -> None:
    for pod in range(PODS):
        job.write(pod, "epoch-1.pt")
    job.settle(60)
    assert job.last() == {"epoch-1.pt": "epoch-1.pt of 0"}
    assert not any("pods/" in request for asked in job.requests for request in asked)
    for asked in job.requests:
        asked.clear()
    for pod in range(PODS):
        job.write(pod, "epoch-2.pt")
    job.settle(50)
    assert job.last().keys() == {"epoch-1.pt", "epoch-2.pt"}
    assert job.requests[1] == job.requests[2] == [], "the pods had the same files before"
    job.settle(60)
    assert job.requests[1] == ["get claim.json", "get parts/1/0.json"] or job.requests[1] == [
        f"get {contract.CLAIM_FILE}",
        "get parts/1/0.json",
    ]


def test_a_file_of_a_shared_kind_that_one_pod_alone_writes_comes_later(job: Job) -> None:
    for pod in range(PODS):
        job.write(pod, "epoch-1.pt")
    job.settle(60)
    job.write(2, "epoch-7.pt")
    job.settle(240)
    assert job.last()["epoch-7.pt"] == "epoch-7.pt of 2"


def test_a_folder_that_another_pod_has_begun_belongs_to_the_next_snapshot(job: Job) -> None:
    dcp(job, 1)
    job.settle()
    dcp(job, 2)
    dcp(job, 3, 1)
    job.settle(30)
    assert job.last() == shards_of(1, 2)
    dcp(job, 3, 0, 2)
    job.settle(30)
    assert job.last() == shards_of(1, 2, 3)


def test_a_checkpoint_that_waited_for_a_pod_is_whole_although_the_next_one_has_begun(job: Job) -> None:
    job.write(1, "step-1/b")
    job.passes(1)
    job.write(0, "step-1/a")
    assert job.passes(0) == [False], "the file of the other pod is pending"
    for _ in range(2):
        job.clock.now += 5
        job.passes(1)
    (job.folders[0] / "step-2").mkdir()
    with (job.folders[0] / "step-2/a").open("w") as begun:
        begun.write("half")
        begun.flush()
        job.clock.now += 5
        job.passes(0)
        assert job.last() == {"step-1/a": "step-1/a of 0", "step-1/b": "step-1/b of 1"}
    job.write(1, "step-2/b")
    job.settle(90)
    assert set(job.last()) == {"step-1/a", "step-1/b", "step-2/a", "step-2/b"}


def test_a_file_that_comes_after_the_snapshot_makes_another_one(job: Job) -> None:
    job.write(0, "checkpoint-1/model.bin")
    job.settle()
    assert len(job.snapshots) == 1
    job.write(1, "checkpoint-1/rng_state_1.pth")
    job.settle(180)
    assert [manifest.number for manifest in job.snapshots] == [1, 2]
    assert job.last().keys() == {"checkpoint-1/model.bin", "checkpoint-1/rng_state_1.pth"}
    job.requests[0].clear()
    job.settle(600)
    assert job.requests[0] == ["list parts"] * 10
    assert len(job.snapshots) == 2


def test_files_of_a_job_whose_rank_0_writes_nothing(job: Job) -> None:
    job.write(2, "last-stage.pt")
    job.settle(180)
    assert job.last() == {"last-stage.pt": "last-stage.pt of 2"}


def test_a_folder_for_each_rank(job: Job) -> None:
    for _ in range(2):
        for pod in range(PODS):
            job.write(pod, f"rank{pod}/state.pt")
        job.settle(240)
        assert job.last().keys() == {f"rank{pod}/state.pt" for pod in range(PODS)}
    for pod in range(PODS):
        job.write(pod, f"rank{pod}/state.pt", "second")
    job.settle(30)
    assert set(job.last().values()) == {"second"}


def test_after_a_restore_a_pods_newer_file_counts(
    job: Job, tmp_path: Path, bucket: Bucket, clock: Clock
) -> None:
    each_writes(job, "first")
    job.settle(90)
    again = Job(tmp_path, bucket, clock, attempt=2)
    assert all(len(list(folder.iterdir())) == PODS for folder in again.folders), "all pods have all files"
    count = len(again.snapshots)
    again.settle(120)
    assert len(again.snapshots) == count
    each_writes(again, "second")
    again.settle(150)
    assert set(again.last().values()) == {"second"}
    assert not any(name.startswith("job/checkpoints/parts/1/") for name in bucket.objects)


def test_after_a_resume_from_another_job_a_pods_newer_file_counts(
    job: Job, tmp_path: Path, bucket: Bucket, clock: Clock
) -> None:
    each_writes(job, "first")
    job.settle()
    again = Job(tmp_path / "other", Bucket(), clock)
    for pod, folder in enumerate(again.folders):
        found = restore(job.store, folder, "Auto")
        assert found
        if pod:
            again.others[pod - 1].note_restored(found.manifest)
        else:
            again.claimant.note_restored(found.manifest, own=False)
    each_writes(again, "second")
    again.settle(60)
    assert set(again.last().values()) == {"second"}


def test_what_rank_0_has_removed_does_not_come_back(
    job: Job, tmp_path: Path, bucket: Bucket, clock: Clock
) -> None:
    dcp(job, 1)
    job.settle()
    dcp(job, 2)
    shutil.rmtree(job.folders[0] / "step-1")
    job.settle(240)
    assert job.last() == shards_of(2)
    again = Job(tmp_path, bucket, clock, attempt=2)
    dcp(again, 3)
    shutil.rmtree(again.folders[0] / "step-2")
    again.settle(240)
    assert again.last() == shards_of(3)


def test_a_pod_that_gave_files_is_waited_for_and_then_excused(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    dcp(job, 1)
    job.passes(1, 2)
    job.settle()
    dcp(job, 2, 0, 1)
    job.settle(other_pods.SILENT_SECONDS - 20)
    assert len(job.snapshots) == 1
    held_up = "checkpoint s3://memory/job/checkpoints/2 waits for files of worker-2"
    assert job.claimant.held_up == held_up
    job.settle(60)
    assert job.last() == {
        path: content for path, content in shards_of(1, 2).items() if path != "step-2/__2_0.distcp"
    }
    assert "pod worker-2 has announced no files for 180 s: checkpoints wait for it no longer" in caplog.text
    assert job.claimant.held_up == ""
    dcp(job, 3, 0, 1)
    job.settle(30)
    assert "step-3/__1_0.distcp" in job.last(), "it is not waited for again"


def test_at_the_end_a_pod_is_awaited_for_a_while(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    dcp(job, 1)
    job.passes(1)
    assert job.passes(0, ended=True) == [False]
    job.clock.now += other_pods.LATE_AT_END_SECONDS - 1
    assert job.passes(0, ended=True) == [False]
    job.clock.now += 2
    assert job.passes(0, ended=True) == [True]
    assert "1 waits for files of worker-1: other pods have not uploaded their files" in caplog.text
    assert job.snapshots == []


def test_files_at_the_end_of_a_job_whose_rank_0_has_nothing_new(job: Job) -> None:
    job.write(0, "model.pt")
    job.settle()
    job.write(1, "optimizer-1.pt")
    assert job.passes(1, ended=True) == [False]
    assert job.passes(0, ended=True) == [False]
    job.clock.now += pod_files_upload.LATE_AT_END_SECONDS
    assert job.passes(1, ended=True) == [True]
    assert job.passes(0, ended=True) == [True]
    assert job.last().keys() == {"model.pt", "optimizer-1.pt"}


def test_a_name_that_is_a_file_here_and_a_folder_there(job: Job) -> None:
    job.write(0, "a")
    job.write(0, "b/file")
    (job.folders[0] / "link").symlink_to("b")
    job.write(1, "a/below")
    job.write(1, "b/other")
    job.write(2, "b")
    job.write(2, "link/below")
    job.settle(240)
    assert job.last().keys() == {"a", "b/file", "b/other"}


@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS", "12"))))
def test_histories(tmp_path: Path, bucket: Bucket, clock: Clock, seed: int) -> None:
    """Whatever the pods write, in whatever order they are heard, with restarts: each snapshot is whole, and
    after a calm time the newest one has the newest files of all pods."""
    chosen = random.Random(seed)
    job, expected, count = Job(tmp_path, bucket, clock, keep=2), dict[str, str](), 0
    for _ in range(60):
        match chosen.randrange(12):
            case 0 | 1 | 2 | 3:
                pod = chosen.randrange(PODS)
                name = chosen.choice([f"state-{pod}.pt", f"rank{pod}/state.pt", "shared.pt"])
                count += 1
                job.write(pod, name, f"{count} of {pod}")
                if name != "shared.pt" or pod == 0:
                    expected[name] = f"{count} of {pod}"
                elif "shared.pt" not in expected:
                    job.write(0, name, f"{count} of 0")
                    expected[name] = f"{count} of 0"
            case 4 if chosen.random() < 0.3:
                job.settle(400)
                job = Job(tmp_path / f"{count}", bucket, clock, attempt=job.fence.attempt + 1, keep=2)
            case _:
                job.passes(chosen.randrange(PODS))
                clock.now += chosen.choice([0, 1, 20])
        for manifest in job.snapshots:
            assert {f"job/checkpoints/{file.key}" for file in manifest.files} <= bucket.objects.keys()
    job.settle(400)
    assert (job.last() if job.snapshots else {}) == expected
    kept = {f"job/checkpoints/{file.key}" for manifest in job.snapshots for file in manifest.files}
    files = {name for name in bucket.objects if "/pods/" in name}
    assert len(files - kept) <= 20, "what nobody names is removed"


def test_a_pending_file_that_vanishes_or_that_cant_be_read_holds_nothing_up(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.write(1, "vanishes.pt")
    job.passes(1)
    (job.folders[1] / "vanishes.pt").unlink()
    job.write(2, "broken.pt")

    def fails(_: object, key: str, path: Path, *__: object) -> str:
        if path.name == "broken.pt":
            raise OSError(5, "Input/output error", str(path))
        return send(_, key, path, *__)

    send = MemoryStore.put_with_sha256
    monkeypatch.setattr(MemoryStore, "put_with_sha256", fails)
    monkeypatch.setattr(SentFiles, "copy_aside", lambda *_: None)
    job.write(0, "model.pt")
    job.settle(90)
    assert job.last().keys() == {"model.pt"}


def test_a_file_that_changes_whenever_it_is_sent_is_copied(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def rewrites(_: object, key: str, path: Path, *__: object) -> str:
        sha256 = send(_, key, path, *__)
        if path.parent == job.folders[1]:
            job.write(1, "changes.pt", f"{len(job.requests[1])}")
            job.clock.now += 40
        return sha256

    send = MemoryStore.put_with_sha256
    monkeypatch.setattr(MemoryStore, "put_with_sha256", rewrites)
    job.write(1, "changes.pt")
    job.write(0, "model.pt")
    job.settle(300)
    assert job.last().keys() == {"model.pt", "changes.pt"}


def test_an_answer_under_way_is_not_removed(job: Job) -> None:
    """The pod with the claim lists the folder while a pod has sent a file, and has not named the file yet."""
    dcp(job, 1)
    job.passes(1, 2)
    job.settle()
    gate = job.gates[1]
    dcp(job, 2)
    job.write(1, "step-2/__1_1.distcp")

    def meanwhile(request: str) -> None:
        job.requests[1].append(request)
        if request.startswith("put") and request.endswith("__1_1.distcp"):
            gate.before = job.requests[1].append
            job.clock.now += 400
            for _ in range(5):
                job.passes(2, 0)
                job.clock.now += 10

    gate.before = meanwhile
    job.settle(300)
    assert job.last() == {**shards_of(1, 2), "step-2/__1_1.distcp": "step-2/__1_1.distcp of 1"}


def test_what_a_pod_rotates_away_does_not_pile_up(tmp_path: Path, bucket: Bucket, clock: Clock) -> None:
    count = 0
    for attempt in (1, 2, 3):
        job = Job(tmp_path, bucket, clock, attempt=attempt)
        for _ in range(2):
            count += 1
            job.write(0, f"model-{count}.pt")
            job.write(1, f"optimizer-{count}.pt")
            for pod, name in enumerate(("model", "optimizer")):
                (job.folders[pod] / f"{name}-{count - 1}.pt").unlink(missing_ok=True)
            job.settle(150)
    assert job.last().keys() == {"model-6.pt", "optimizer-6.pt"}


def test_a_restored_file_that_is_a_folder_now(job: Job, tmp_path: Path, bucket: Bucket, clock: Clock) -> None:
    job.write(0, "model.pt")
    job.write(1, "state")
    job.settle(90)
    again = Job(tmp_path, bucket, clock, attempt=2)
    (again.folders[1] / "state").unlink()
    again.write(1, "state/part")
    os.utime(again.folders[1] / "state/part", ns=(2**62, 2**62))
    again.settle(150)
    assert again.last().keys() == {"model.pt", "state/part"}


def test_a_path_that_rank_0_once_had_is_another_pods_when_that_writes_it(job: Job) -> None:
    for pod in (0, 1):
        job.write(pod, "shared.pt")
    job.write(0, "folder/a")
    job.settle(90)
    (job.folders[0] / "shared.pt").unlink()
    (job.folders[0] / "folder/a").unlink()
    job.write(0, "model.pt")
    job.settle(90)
    assert job.last().keys() == {"model.pt"}
    job.write(1, "shared.pt", "newer")
    job.write(1, "folder/b")
    job.settle(150)
    assert job.last() == {"model.pt": "model.pt of 0", "shared.pt": "newer", "folder/b": "folder/b of 1"}


def test_a_mode_that_rank_0_changes_makes_no_file_its_own(
    job: Job, tmp_path: Path, bucket: Bucket, clock: Clock
) -> None:
    job.write(0, "model.pt")
    job.write(1, "state.pt", "older")
    job.settle(90)
    again = Job(tmp_path, bucket, clock, attempt=2)
    (again.folders[0] / "state.pt").chmod(0o600)
    again.settle(90)
    again.write(1, "state.pt", "newer")
    again.settle(150)
    assert again.last()["state.pt"] == "newer"


def test_a_long_upload_at_the_end_is_waited_for_while_bytes_flow(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcp(job, 1)
    job.passes(1, 2)
    job.settle()
    dcp(job, 2)
    done: list[bool] = []

    def slow(_: object, key: str, path: Path, on_bytes: Callable[[int], None], **__: object) -> Uploaded:
        if path.name == "__1_0.distcp":
            for _minute in range(20):
                job.clock.now += 61
                on_bytes(1)
                done.extend(job.passes(0, ended=True))
        return put_whole(_, key, path, on_bytes)

    put_whole = MemoryStore.put_whole
    monkeypatch.setattr(MemoryStore, "put_whole", slow)
    for _ in range(6):
        job.passes(ended=True)
        job.clock.now += 5
    assert len(done) == 20
    assert not any(done)
    assert job.last() == shards_of(1, 2)


def test_a_log_of_a_pod_holds_nothing_up(job: Job) -> None:
    for count in range(8):
        job.write(1, "rank-1.log", "line\n" * (count + 1))
        job.passes(1)
        job.clock.now += 3
    job.write(0, "model.pt")
    for count in range(8, 30):
        job.write(1, "rank-1.log", "line\n" * (count + 1))
        job.passes()
        job.clock.now += 3
    assert job.last()["model.pt"] == "model.pt of 0"
    job.settle(300)
    assert job.last() == {"model.pt": "model.pt of 0", "rank-1.log": "line\n" * 30}


def test_the_first_checkpoint_after_a_restore_waits_for_no_file_that_another_pod_writes(
    job: Job, tmp_path: Path, bucket: Bucket, clock: Clock
) -> None:
    """The restored folder has `.metadata` in every pod, and each pod's new folder has its shard alone."""
    for step in (1, 2):
        dcp(job, step)
        job.settle(60)
    again = Job(tmp_path, bucket, clock, attempt=2)
    dcp(again, 3)
    again.write(2, "step-3/extra.pt")
    again.passes(1, 2)
    again.settle(30)
    assert again.last() == shards_of(1, 2, 3) | {"step-3/extra.pt": "step-3/extra.pt of 2"}
    once_more = Job(tmp_path, bucket, clock, attempt=3)
    dcp(once_more, 4)
    once_more.write(2, "step-4/extra.pt")
    once_more.passes(1, 2)
    once_more.settle(30)
    assert once_more.last().keys() >= {*shards_of(3, 4), "step-4/extra.pt"}
