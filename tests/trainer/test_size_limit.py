"""Snapshots of at most so many bytes, for programs that never remove their checkpoints."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence
from dtj_trainer.artifacts.manifest import StoredFile, StoredLink
from dtj_trainer.artifacts.size_limit import left_out
from dtj_trainer.artifacts.snapshot import read_index


def stored(*names: str, size: int = 10, at_once: bool = False) -> list[StoredFile]:
    """Files in the order of their times, each new in a snapshot of its own, or all in one."""
    return [
        StoredFile(name, f"{1 if at_once else number}/{name}", size, "", number)
        for number, name in enumerate(names)
    ]


EPOCHS = stored(*(f"epoch-{number}.pt" for number in range(1, 6)))


@pytest.mark.bound(
    "agent",
    "A program that saves without end",
    "Bytes of a checkpoint",
    "`DTJ_CHECKPOINTS_KEEP_BYTES`, where it is set",
)
@pytest.mark.parametrize(
    ("files", "links", "most", "expected"),
    [
        (EPOCHS, [], 50, set()),
        (EPOCHS, [], 49, {"epoch-1.pt"}),
        (EPOCHS, [], 20, {"epoch-1.pt", "epoch-2.pt", "epoch-3.pt"}),
        (EPOCHS, [], 0, {f"epoch-{number}.pt" for number in range(1, 5)}),
        # What a link names stays.
        (EPOCHS, [StoredLink("best.pt", "epoch-1.pt")], 40, {"epoch-2.pt"}),
        (EPOCHS, [StoredLink("runs/best.pt", "../epoch-1.pt")], 40, {"epoch-2.pt"}),
        # Of several kinds, the most numerous loses first.
        (stored("a-1", "b-1", "b-2", "b-3"), [], 30, {"b-1"}),
        # A folder goes as a whole. The parts of one checkpoint are no kinds of their own.
        (stored("c-1/w-1-of-2", "c-1/w-2-of-2", "c-2/w-1-of-2", "c-2/w-2-of-2"), [], 30, {"c-1"}),
        (stored("run/c-1/w", "run/c-2/w", "run/log.txt"), [], 20, {"run/c-1"}),
        (stored("w-1-of-3", "w-2-of-3", "w-3-of-3", at_once=True), [], 10, set()),
        (stored("only-1/w-1-of-3", "only-1/w-2-of-3", at_once=True), [], 10, set()),
        (stored("best.pt", "last.pt"), [], 5, set()),
    ],
)
def test_the_oldest_of_the_most_numerous_kind_goes_first(
    files: list[StoredFile], links: list[StoredLink], most: int, expected: set[str]
) -> None:
    assert left_out(files, links, most, None) == expected


def test_the_folder_of_save_stays() -> None:
    files = stored("7/part-1", "7/part-2", "old-1", "old-2")
    assert left_out(files, [], 10, "7") == {"old-1"}


class Run:
    """A program's folder, and its uploader with a limit."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self.bucket = folder, Bucket()
        self.requests: list[str] = []
        self.job = MemoryStore(self.bucket, Gate(before=self.requests.append))
        self.uploader = CheckpointUploader(
            folder,
            self.job.below("checkpoints"),
            fence=Fence(self.job, contract.CLAIM_FILE, 1),
            keep=2,
            keep_bytes=most_bytes,
            settle_seconds=0.0,
            step_at=lambda _: None,
        )

    def save(self, name: str, size: int = 100) -> list[str]:
        """Write a file; return what the next snapshot has."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode().ljust(size, b"."))
        self.uploader.upload_pass(ended=True, died_ns=None)
        manifest = read_index(self.job.below("checkpoints")).newest_first()[0]
        for file in manifest.files:
            assert f"job/checkpoints/{file.key}" in self.bucket.objects, file
        return sorted([*(file.path for file in manifest.files), *(each.path for each in manifest.folders)])


def test_the_bucket_of_a_program_that_keeps_all_has_the_newest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = Run(tmp_path, 250)
    for number in range(1, 9):
        files = run.save(f"c-{number}/w")
        kept = [number - 1, number] if number > 1 else [1]
        assert files == sorted(each for k in kept for each in (f"c-{k}", f"c-{k}/w"))
    # Retention also keeps the first snapshot as the anchor. So the bucket has the files of up to three snapshots.
    sizes = [len(content) for key, content in run.bucket.objects.items() if key.endswith("/w")]
    assert sum(sizes) <= 400
    sent = [request for request in run.requests if request.startswith("put ") and request.endswith("/w")]
    assert len(sent) == 8, "what is left out is not sent again"
    assert (
        "the checkpoint leaves out old files (c-1 and 0 more), to stay within DTJ_CHECKPOINTS_KEEP_BYTES=250"
        in caplog.text
    )
    # What the program writes again comes back.
    assert run.save("c-2/w", 90) == ["c-2", "c-2/w", "c-8", "c-8/w"]


def test_a_limit_that_the_newest_files_exceed_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, 50)
    assert run.save("last.pt") == ["last.pt"]
    run.save("best.pt")
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == [
        "the checkpoint is too large: the newest files of each kind have 100 bytes, more than "
        "DTJ_CHECKPOINTS_KEEP_BYTES=50"
    ]
