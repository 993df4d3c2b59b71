"""Files that a restore leaves in the bucket until the program reads them: once a pod, verified, never uploaded."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.memory_store import Bucket, Gate, MemoryStore
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints, file_fetch
from dtj_trainer.artifacts import restore as restore_module
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence
from dtj_trainer.artifacts.other_pods import PartUploader
from dtj_trainer.artifacts.restore import restore
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.store import Store
from dtj_trainer.torch import sharded_saver

STATE = {f"model.{number}": torch.full((40_000,), float(number)) for number in range(4)}


class Job:
    """A job whose checkpoint of step 5 has a file of shards for each tensor. `gets`: the GETs by file."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bucket, self.gets = Bucket(), Counter[str]()
        self._root, self._monkeypatch, self._lock = root, monkeypatch, threading.Lock()
        self.store = MemoryStore(self.bucket, Gate(self._count))
        self._monkeypatch.setenv(contract.ENV_ARTIFACTS_URI, "s3://not/pruned")
        self._monkeypatch.setattr(file_fetch, "open_store", self.opened)
        self.pod("first")
        checkpoints.save(5, self.write, on_demand="__*.distcp")
        assert self.uploader("first", attempt=1).upload_pass(ended=True, died_ns=None)
        self.gets.clear()

    def opened(self, uri: str) -> Store:
        return MemoryStore(self.bucket, Gate(self._count), uri.removeprefix("s3://memory/"))

    def _count(self, request: str) -> None:
        verb, _, key = request.partition(" ")
        if verb == "get":
            with self._lock:
                self.gets[key.rpartition("/")[2]] += 1

    def write(self, folder: Path) -> None:
        sharded_saver.write_run(folder, {"a": 1})
        save_state(STATE, storage_writer=FileSystemWriter(folder, single_file_per_rank=False), no_dist=True)

    def pod(self, name: str) -> Path:
        """This process is now in that pod. Returns the pod's folder of checkpoints."""
        self._monkeypatch.setenv(contract.ENV_ROOT, str(self._root / name))
        folder = self._root / name / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def restore(self, name: str, step: int = 5) -> Path:
        """Restore in a pod. Returns the checkpoint's folder."""
        folder = self.pod(name)
        self.restored = restore(self.store.below("checkpoints"), folder, "Auto")
        assert self.restored
        return folder / str(step)

    def uploader(self, name: str, attempt: int) -> CheckpointUploader:
        return CheckpointUploader(
            self._root / name / "checkpoints",
            self.store.below("checkpoints"),
            fence=Fence(self.store, contract.CLAIM_FILE, attempt),
            keep=3,
            settle_seconds=0,
            step_at=lambda _: None,
        )

    @property
    def shards_read(self) -> Mapping[str, int]:
        return {name: count for name, count in self.gets.items() if name.endswith(".distcp")}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


def read(folder: Path, *names: str) -> dict[str, torch.Tensor]:
    state = {name: torch.zeros_like(STATE[name]) for name in names}
    load(state, storage_reader=sharded_saver.NeededFiles(folder), no_dist=True)
    return state


def test_a_rank_brings_the_files_of_its_tensors_alone(job: Job) -> None:
    folder = job.restore("second")
    assert sorted(path.name for path in folder.iterdir()) == [
        ".dtj-checkpoint.json",
        ".dtj-in-bucket.json",
        ".metadata",
        "run.json",
    ]
    assert job.shards_read == {}
    assert list(sharded_saver.whole_ones()) == [5]
    (state,) = read(folder, "model.2").values()
    assert torch.equal(state, STATE["model.2"])
    assert list(job.shards_read.values()) == [1]
    files = sum(len(content) for name, content in job.bucket.objects.items() if name.endswith(".distcp"))
    read_bytes = sum(path.stat().st_size for path in folder.glob("*.distcp"))
    print(f"a rank of 4 reads {read_bytes} of {files} bytes of shards")
    assert read_bytes < 0.3 * files


def test_ranks_of_a_pod_that_read_at_once_fetch_each_file_once(job: Job) -> None:
    folder = job.restore("second")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: read(folder, *STATE), range(4)))
    for state in found:
        assert all(torch.equal(state[name], value) for name, value in STATE.items())
    assert sorted(job.shards_read.values()) == [1, 1, 1, 1]


def test_a_file_that_still_arrives_is_not_there_for_others(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = job.restore("second")
    there: list[Path] = []
    fetch_files = file_fetch.fetch_files

    def fetched(*given: Any) -> str | None:
        fault = fetch_files(*given)
        there.extend(folder.glob("*.distcp"))
        return fault

    monkeypatch.setattr(file_fetch, "fetch_files", fetched)
    (state,) = read(folder, "model.2").values()
    assert torch.equal(state, STATE["model.2"])
    assert there == []
    assert not list(folder.glob("*.fetch.tmp"))


def test_the_files_that_arrive_later_are_not_uploaded_again(job: Job) -> None:
    folder = job.restore("second")
    assert job.restored
    uploader = job.uploader("second", attempt=2)
    uploader.note_restored(job.restored.manifest, own=True)
    parts = PartUploader(
        folder.parent,
        job.store,
        job.store.below("checkpoints"),
        claim_key=contract.CLAIM_FILE,
        attempt=2,
        keep=3,
        pod="other",
    )
    parts.note_restored(job.restored.manifest)
    read(folder, *STATE)
    before = set(job.bucket.objects)
    assert uploader.upload_pass(ended=True, died_ns=None)
    assert parts.upload_pass(ended=True, died_ns=None)
    assert set(job.bucket.objects) - before <= {"job/attempt.json"}


def test_a_checkpoint_that_lacks_a_shard_is_skipped_before_the_program_starts(job: Job) -> None:
    name = next(name for name in job.bucket.objects if name.endswith(".distcp"))
    content = job.bucket.objects.pop(name)
    with pytest.raises(S3Error, match=r"\.distcp is missing in the bucket"):
        job.restore("second")
    job.bucket.objects[name] = content[:-1]
    with pytest.raises(S3Error, match=r"\.distcp has \d+ bytes in the bucket instead of \d+"):
        job.restore("third")


def test_a_damaged_shard_is_refused_and_the_next_attempt_goes_on_from_the_checkpoint_before(job: Job) -> None:
    job.pod("first")
    checkpoints.save(6, job.write, on_demand=sharded_saver.ON_DEMAND)
    assert job.uploader("first", attempt=1).upload_pass(ended=True, died_ns=None)
    for name, content in job.bucket.objects.items():
        if "checkpoints/6" in name and name.endswith(".distcp"):
            job.bucket.objects[name] = content[:-1] + b"?"
    folder = job.restore("second", step=6)
    names = sorted(file_fetch.in_bucket(folder).files)
    with pytest.raises(S3Error, match=r"is damaged .*; the next attempt resumes from the checkpoint before"):
        checkpoints.bring(folder, names)
    assert not list(folder.glob("*.distcp"))
    read(job.restore("third"), *STATE)


def test_checkpoints_without_a_pattern_are_restored_whole(job: Job) -> None:
    job.pod("second")
    checkpoints.save(6, job.write)
    assert job.uploader("second", attempt=2).upload_pass(ended=True, died_ns=None)
    folder = job.restore("third", step=6)
    assert len(list(folder.glob("*.distcp"))) == 4
    checkpoints.bring(folder, ["anything"])


def test_checkpoints_of_another_job_are_restored_whole(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_module, "open_store", lambda uri, received: job.opened(uri))
    other = MemoryStore(job.bucket, Gate(), "new")
    folder = job.pod("second")
    found = restore(other, folder, "s3://memory/job/checkpoints")
    assert found
    assert not found.own
    assert len(list((folder / "5").glob("*.distcp"))) == 4


def test_small_tensors_of_several_ranks_are_in_the_lowest_ranks_file() -> None:
    planners = [sharded_saver.SmallTogether() for _ in range(3)]
    state = {
        "step": torch.ones(2),
        "counts": torch.ones(3),
        "large": torch.ones(20_000),
        "other": torch.ones(20_000),
    }
    for planner in planners:
        planner.set_up_planner(state)
    plans, _ = planners[0].create_global_plan([planner.create_local_plan() for planner in planners])
    names = [sorted(item.index.fqn for item in plan.items) for plan in plans]
    assert {"step", "counts"} <= set(names[0])
    assert sorted(name for each in names for name in each) == sorted(state)
    assert sum("large" in each or "other" in each for each in names) == 2, "large ones are spread"


def test_a_rank_waits_for_the_bucket_as_long_as_its_pod(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = job.restore("second")
    tries = 0

    def down(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise S3Error("down", transient=True)

    monkeypatch.setattr(file_fetch, "fetch_files", down)
    monkeypatch.setenv("DTJ_SYNC_TIMEOUT_SECONDS", "0")
    with pytest.raises(S3Error, match="down"):
        checkpoints.bring(folder, file_fetch.in_bucket(folder).files)
    assert tries == 1
