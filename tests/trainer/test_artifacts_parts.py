"""Checkpoints of which each pod holds a part: whole or absent, pruned as one, restored everywhere, fenced."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.trainer.conftest import steps_in
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints, other_pods
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence, Superseded
from dtj_trainer.artifacts.other_pods import PartUploader
from dtj_trainer.artifacts.restore import restore
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.snapshot import read_index

PODS = 3


class Job:
    """The pods of one attempt. Pod 0 has the claim. Each pod has two ranks, with a file each."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket, attempt: int = 1, keep: int = 3
    ) -> None:
        self._root, self._monkeypatch = root / str(attempt), monkeypatch
        job = MemoryStore(bucket, Gate())
        self.store = job.below("checkpoints")
        self.fence = Fence(job, contract.CLAIM_FILE, attempt)
        folders = [self.folder(pod) for pod in range(PODS)]
        self.claimant = CheckpointUploader(
            folders[0], self.store, fence=self.fence, keep=keep, settle_seconds=0, step_at=lambda _: None
        )
        self.others = [
            PartUploader(
                folder,
                job,
                self.store,
                claim_key=contract.CLAIM_FILE,
                attempt=attempt,
                keep=keep,
                pod=f"job-{pod}",
            )
            for pod, folder in enumerate(folders)
            if pod
        ]

    def folder(self, pod: int) -> Path:
        path = self._root / str(pod) / contract.CHECKPOINTS
        path.mkdir(parents=True, exist_ok=True)
        return path

    def save(self, step: int, *pods: int, name: str = "__{rank}_0.distcp") -> None:
        self._monkeypatch.setenv(contract.ENV_ARTIFACTS_URI, "s3://not/pruned")
        for pod in pods or range(PODS):

            def write(folder: Path, pod: int = pod) -> None:
                for rank in (2 * pod, 2 * pod + 1):
                    (folder / name.format(rank=rank)).write_text(f"{step} of {rank}")
                if pod == 0:
                    (folder / ".metadata").write_text(f"{step}")

            self._monkeypatch.setenv(contract.ENV_ROOT, str(self._root / str(pod)))
            checkpoints.save(step, write, parts=PODS)

    def passes(self, *pods: int, ended: bool = False) -> list[bool]:
        uploaders = [self.claimant, *self.others]
        return [uploaders[pod].upload_pass(ended=ended, died_ns=None) for pod in pods or (*range(1, PODS), 0)]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> Job:
    made = Job(tmp_path, monkeypatch, bucket)
    made.fence.hold()
    return made


FILES = sorted([".dtj-checkpoint.json", ".metadata", *(f"__{rank}_0.distcp" for rank in range(2 * PODS))])


def test_it_counts_once_all_parts_are_there_and_each_pod_gets_all(job: Job, tmp_path: Path) -> None:
    job.save(10)
    assert job.passes(0) == [False]
    assert steps_in(job.store) == []
    assert job.passes(1, 0) == [True, False]
    assert steps_in(job.store) == []
    assert job.passes(2, 0) == [True, True]
    assert steps_in(job.store) == [10]
    restored = restore(job.store, tmp_path, "Auto")
    assert restored
    assert sorted(path.name for path in (tmp_path / "10").iterdir()) == FILES
    assert (tmp_path / "10/__5_0.distcp").read_text() == "10 of 5"
    named = {file.key for file in restored.manifest.files} | {"10/manifest.json"}
    assert {item.key for item in job.store.objects()} == named  # No part manifest is left.


def test_a_late_part_does_not_hold_up_the_checkpoint_before(job: Job) -> None:
    job.save(10)
    job.save(20, 0, 1)
    job.passes()
    assert steps_in(job.store) == [10]
    job.save(20, 2)
    job.passes()
    assert steps_in(job.store) == [10, 20]


def test_whole_checkpoints_are_counted_and_skipped_parts_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
) -> None:
    job = Job(tmp_path, monkeypatch, bucket, keep=1)
    job.fence.hold()
    job.save(10)
    job.passes(1, 2, 0)
    job.save(20, 1)
    job.passes(1)
    assert steps_in(job.store) == [10]  # A part of 20 takes nobody's place.
    for step in (30, 40):
        job.save(step)
        job.passes()
    assert steps_in(job.store) == [40]
    assert {item.key.partition("/")[0] for item in job.store.objects()} == {"40"}


def test_after_the_end_parts_are_awaited_for_a_while(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job.save(10, 0, 1)
    assert job.passes(1, 0, ended=True) == [True, False]
    monkeypatch.setattr(other_pods, "LATE_PART_SECONDS", 0.0)
    assert job.passes(0, ended=True) == [True]
    assert "10 has 1 of 3 parts" not in caplog.text
    assert "has 2 of 3 parts: other pods have not uploaded their files" in caplog.text
    assert steps_in(job.store) == []


def test_no_part_is_uploaded_without_the_claim_of_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
) -> None:
    first = Job(tmp_path, monkeypatch, bucket)
    first.save(10)
    assert first.passes(1, 2) == [False, False]
    assert bucket.objects == {}
    first.fence.hold()
    first.passes(1)
    second = Job(tmp_path, monkeypatch, bucket, attempt=2)
    second.save(10)
    assert second.passes(1) == [False]  # The claim is that of the first attempt.
    second.fence.hold()
    with pytest.raises(Superseded, match="attempt 2 has taken over"):
        first.passes(2)
    assert second.passes() == [True, True, True]
    assert [*read_index(second.store).manifests] == ["10-2"]
    assert {item.key.partition("/")[0] for item in second.store.objects()} == {"10-2"}


def test_files_of_the_same_name_are_an_error(job: Job) -> None:
    job.save(10, name="state.pt")
    with pytest.raises(S3Error, match=r"several pods have saved a file 10/state.pt"):
        job.passes()
    assert steps_in(job.store) == []


def test_a_restored_checkpoint_is_not_uploaded_again(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
) -> None:
    job.save(10)
    job.passes()
    again = Job(tmp_path, monkeypatch, bucket, attempt=2)
    again.fence.hold()
    for pod in range(PODS):
        restored = restore(again.store, again.folder(pod), "Auto")
        assert restored
        if pod:
            again.others[pod - 1].note_restored(restored.manifest)
        else:
            again.claimant.note_restored(restored.manifest, own=True)
    before = dict(bucket.objects)
    assert again.passes() == [True] * PODS
    assert bucket.objects == before


@pytest.mark.parametrize("seed", range(10))
def test_in_any_order_each_checkpoint_is_whole(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
) -> None:
    chance = random.Random(seed)
    newest = [0] * PODS
    job = Job(tmp_path, monkeypatch, bucket, keep=chance.choice([1, 2, 3]))
    job.fence.hold()
    for _ in range(60):
        pod = chance.randrange(PODS)
        # A pod saves while at most one save is under way: it may be one step ahead of the others.
        if chance.random() < 0.4 and newest[pod] == min(newest):
            newest[pod] += 1
            job.save(newest[pod], pod)
        else:
            job.passes(pod)
        for manifest in read_index(job.store).manifests.values():
            held = {file.path: job.store.get_bytes(file.key) for file in manifest.files}
            assert len(held) == len(FILES)
            for rank in range(2 * PODS):
                assert held[f"{manifest.step}/__{rank}_0.distcp"].decode() == f"{manifest.step} of {rank}"
    for pod in range(PODS):
        if newest[pod] < max(newest):
            job.save(max(newest), pod)
    job.passes(*range(PODS), 0)
    assert max(newest) in steps_in(job.store)
