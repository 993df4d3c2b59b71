"""All pods of an attempt restore the snapshot that the pod of rank 0 chose."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trainer.conftest import put_checkpoint
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence, Superseded, read_claim
from dtj_trainer.artifacts.file_fetch import Near
from dtj_trainer.artifacts.restore import (
    CheckpointMirror,
    Lineage,
    Restored,
    restore,
    restore_as_rank_0,
    restore_checkpoint,
    restore_exactly,
)
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.sync import SyncSettings


class Pods:
    """The pods of attempt 2 beside a bucket with checkpoints 10 and 20."""

    def __init__(self, root: Path) -> None:
        self.bucket = Bucket()
        self.job = MemoryStore(self.bucket, Gate())
        self.fence = Fence(self.job, contract.CLAIM_FILE, 2)
        self.root, self.now = root, 0.0
        (root / "source").mkdir()
        for step in (10, 20):
            put_checkpoint(self.job, root / "source", step)

    def settings(self, name: str, part: contract.Part) -> SyncSettings:
        root = self.root / name
        (root / contract.CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        return SyncSettings(
            root=root,
            config_dir=root,
            uri="s3://memory/job",
            part=part,
            attempt=2,
            resume="Auto",
            keep=3,
            settle_seconds=0,
            shards=True,
        )

    def rank_0(self) -> Restored | None:
        self.fence.hold()
        return restore_checkpoint(self.job, self.settings("rank-0", "primary"), Near(), self.fence, 600)

    def other(self, *meanwhile: Callable[[], object]) -> tuple[bool, Restored | None]:
        """Restore as another pod. meanwhile: what happens during its waits, one by one; in the end, time passes."""
        events, folder = list(meanwhile), self.root / "other" / contract.CHECKPOINTS
        folder.mkdir(parents=True, exist_ok=True)

        def sleep(_: float) -> None:
            if events:
                events.pop(0)()
            else:
                self.now += 100

        return restore_as_rank_0(
            self.job,
            2,
            lambda uri: restore_exactly(self.job.below(contract.CHECKPOINTS), folder, uri),
            timeout=600,
            sleep=sleep,
            now=lambda: self.now,
        )

    def damage(self, step: int) -> None:
        self.bucket.objects[f"job/checkpoints/{step}/ckpt-{step}.index"] = b"damaged"


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    return Pods(tmp_path)


def test_another_pod_waits_for_the_choice_of_rank_0(pods: Pods, tmp_path: Path) -> None:
    def appears() -> None:
        put_checkpoint(pods.job, tmp_path / "source", 30)

    known, restored = pods.other(pods.rank_0, appears)
    assert known
    assert restored
    assert restored.own
    assert restored.manifest.step == 20
    assert (tmp_path / "other/checkpoints/ckpt-20.index").read_text() == "index of 20"
    assert restored.uri == "s3://memory/job/checkpoints/20"


def test_a_damaged_checkpoint_is_skipped_by_all_pods(pods: Pods) -> None:
    pods.fence.hold()
    pods.fence.announce_restore("s3://memory/job/checkpoints/20", restored=False)
    pods.damage(20)
    known, restored = pods.other(pods.rank_0)
    assert known
    assert restored
    assert restored.manifest.step == 10


def test_a_pod_alone_skips_no_checkpoint(pods: Pods) -> None:
    pods.rank_0()
    pods.damage(20)
    with pytest.raises(S3Error, match=r"checkpoints/20 is damaged: ckpt-20\.index has 7 bytes instead of 11"):
        pods.other()


def test_nothing_to_restore(pods: Pods) -> None:
    pods.bucket.objects.clear()
    assert pods.other(pods.rank_0) == (True, None)


def test_a_pod_does_not_wait_for_ever(pods: Pods) -> None:
    assert pods.other() == (False, None)
    pods.fence.hold()
    pods.fence.announce_restore("s3://memory/job/checkpoints/10", restored=False)
    known, restored = pods.other()
    assert known
    assert restored
    assert restored.manifest.step == 10


def test_a_later_attempt(pods: Pods) -> None:
    Fence(pods.job, contract.CLAIM_FILE, 3).hold()
    with pytest.raises(Superseded):
        pods.other()


def test_the_claim_of_an_earlier_release_is_read(pods: Pods) -> None:
    pods.fence.hold()
    key = f"job/{contract.CLAIM_FILE}"
    before = json.loads(pods.bucket.objects[key])
    before = {name: value for name, value in before.items() if name not in ("restores", "restored")}
    pods.bucket.objects[key] = json.dumps(before).encode()
    claim, _ = read_claim(pods.job, contract.CLAIM_FILE)
    assert claim
    assert claim.restores is None
    assert not claim.restored
    pods.fence.hold()
    pods.fence.announce_restore("", restored=True)
    assert pods.other() == (True, None)


def test_a_checkpoint_to_skip_is_restored_only_without_others(tmp_path: Path) -> None:
    """The newest is 40; 10 is the one that is ten minutes older."""
    job, minutes = MemoryStore(Bucket(), Gate()), {10: 0, 20: 9, 30: 11, 40: 12}
    (tmp_path / "source").mkdir()
    for step, minute in minutes.items():
        put_checkpoint(job, tmp_path / "source", step, time=f"2026-01-01T00:{minute:02}:00.000Z")

    def restored(*skip: str, kept: tuple[str, ...] = ("10", "20", "30", "40")) -> int | None:
        found = restore(
            job.below(contract.CHECKPOINTS), tmp_path / "to", "Auto", kept=lambda _: set(kept), skip=skip
        )
        assert found
        return found.manifest.step

    assert restored() == 40
    assert restored("40") == 30
    assert restored("40", "30") == 10
    assert restored("40", "10") == 30
    assert restored("40", kept=("20", "40")) == 20
    assert restored("40", kept=("40",)) == 40


# --- a snapshot that the user chose ------------------------------------------------------------


class Chosen(Pods):
    """Checkpoints 10 and 20 of attempt 1, and a user who resumed attempt 2 from checkpoint 10."""

    uri = "s3://memory/job/checkpoints/10"

    def restored(self, name: str = "pod", **changes: object) -> Restored | None:
        settings = replace(
            self.settings(name, "primary"),
            **{"resume": self.uri, "resume_since": 2, "shards": False} | changes,
        )
        self.fence.hold()
        return restore_checkpoint(self.job, settings, Near(), self.fence, 600)


def test_the_chosen_snapshot_is_restored_until_its_attempt_or_a_later_one_has_one(tmp_path: Path) -> None:
    pods = Chosen(tmp_path)
    restored = pods.restored()
    assert restored == (restored and restored.manifest, Chosen.uri, True)
    assert (tmp_path / "pod/checkpoints/ckpt-10.index").exists()
    assert not (tmp_path / "pod/checkpoints/ckpt-20.index").exists()
    # Also where a program could not go on from it.
    assert (pods.restored(resume_skip=("10", "20")) or restored).uri == Chosen.uri
    put_checkpoint(pods.job, tmp_path / "source", 25, attempt=2)
    assert (pods.restored() or restored).manifest.number == 25
    # The chosen one is the one before those of its attempt.
    assert (pods.restored(resume_skip=("25",)) or restored).uri == Chosen.uri
    put_checkpoint(pods.job, tmp_path / "source", 30, attempt=3)
    assert (pods.restored() or restored).manifest.number == 30


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, Chosen.uri),
        ({"resume": "Auto", "resume_since": 0, "resume_skip": ("20",)}, Chosen.uri),
        ({"resume": "Auto", "resume_since": 0}, None),
    ],
)
def test_the_claim_of_a_pod_alone_names_a_snapshot_that_is_not_the_newest(
    tmp_path: Path, changes: dict[str, object], named: str | None
) -> None:
    pods = Chosen(tmp_path)
    pods.restored(**changes)
    claim, _ = read_claim(pods.job, contract.CLAIM_FILE)
    assert claim is not None
    assert claim.restores == named


def test_damaged_snapshots_after_the_chosen_one_lead_back_to_it(tmp_path: Path) -> None:
    pods = Chosen(tmp_path)
    put_checkpoint(pods.job, tmp_path / "source", 30, attempt=2)
    pods.job.put_bytes("checkpoints/30/ckpt-30.index", b"others")
    restored = pods.restored()
    assert restored is not None
    assert restored.uri == Chosen.uri


def test_a_chosen_snapshot_that_is_gone_is_an_error(tmp_path: Path) -> None:
    pods = Chosen(tmp_path)
    with pytest.raises(
        S3Error, match="to go back to, s3://memory/job/checkpoints/11, does not exist"
    ) as error:
        pods.restored(resume="s3://memory/job/checkpoints/11")
    assert not error.value.transient


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_later_releases_snapshots_count_by_their_attempts(tmp_path: Path, attempt: int) -> None:
    pods = Chosen(tmp_path)
    pods.job.put_bytes("checkpoints/30/manifest.json", b'{"version": 9, "attempt": %d}' % attempt)
    if attempt == 2:
        with pytest.raises(S3Error, match="a newer release of dtj_trainer wrote the checkpoint"):
            pods.restored()
    else:
        restored = pods.restored()
        assert restored is not None
        assert restored.uri == Chosen.uri


def test_the_chosen_snapshot_stays_until_its_attempt_has_one(tmp_path: Path) -> None:
    """Retention alone would remove it: it is older than those from which the user went back."""
    pods = Chosen(tmp_path)
    for step in (30, 40):
        put_checkpoint(pods.job, tmp_path / "source", step)
    pods.fence.hold()
    restored = pods.restored()
    assert restored is not None
    folder = tmp_path / "pod/checkpoints"
    uploader = CheckpointUploader(
        folder,
        pods.job.below("checkpoints"),
        fence=pods.fence,
        keep=1,
        settle_seconds=0,
        step_at=lambda _: None,
    )
    uploader.note_restored(restored.manifest, own=True)
    uploader.upload_pass(ended=False, died_ns=None)
    assert (uploader.newest or {}).get("step") == 10
    assert {"10", "40"} <= set(read_index(pods.job.below("checkpoints")).manifests)
    (folder / "new").write_text("x")
    uploader.upload_pass(ended=True, died_ns=None)
    assert "10" not in read_index(pods.job.below("checkpoints")).manifests


def test_the_mirror_of_the_evaluator_has_the_chosen_snapshot(tmp_path: Path) -> None:
    pods = Chosen(tmp_path)
    (tmp_path / "evaluator").mkdir()
    requests: list[str] = []
    store = MemoryStore(pods.bucket, Gate(before=requests.append)).below("checkpoints")
    mirror = CheckpointMirror(tmp_path / "evaluator", store, keep=3, lineage=Lineage("10", 2))
    for _ in range(2):
        requests.clear()
        mirror.mirror_pass(ended=False, died_ns=None)
        assert (mirror.newest or {}).get("step") == 10
    assert not any(request.startswith("get") for request in requests), "abandoned ones are read once"
    put_checkpoint(pods.job, tmp_path / "source", 50, attempt=2)
    mirror.mirror_pass(ended=False, died_ns=None)
    assert (mirror.newest or {}).get("step") == 50


def test_all_pods_restore_the_chosen_snapshot(tmp_path: Path) -> None:
    pods = Chosen(tmp_path)
    pods.fence.hold()
    pods.restored(shards=True)
    known, restored = pods.other()
    assert known
    assert restored is not None
    assert restored.uri == Chosen.uri
