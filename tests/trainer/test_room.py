"""A volume without room for the files of all pods: a restore brings the pod's own; no checkpoint loses the others."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.trainer.memory_store import Bucket, Gate, MemoryStore
from tests.trainer.test_pod_files import Job, bucket, clock, dcp, shards_of  # noqa: F401 - fixtures

from dtj_trainer.artifacts import checkpoints, file_fetch
from dtj_trainer.artifacts.file_fetch import Near, Room
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE, RECORD_FILE
from dtj_trainer.artifacts.manifest import Manifest, StoredFile, sha256_of
from dtj_trainer.artifacts.restore import restore

MIB = 2**20
VOLUME_BYTES = 8 * MIB


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A volume of its own, of 8 MiB."""
    folder = tmp_path / "volume"
    folder.mkdir()
    mounted = ("mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "none", str(folder))
    if subprocess.run(mounted, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class Stored:
    """A job's bucket with one snapshot: a file of each of some pods for each of some steps."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.job = MemoryStore(Bucket(), Gate())
        self.store = self.job.below("checkpoints")
        self._files: list[StoredFile] = []

    def add(self, path: str, pod: str, size: int, age: int, *, new: bool = True) -> None:
        number = 7 if new else 6
        key = f"{number}/pods/{pod}/0a0a0a0a-1/{path}" if pod else f"{number}/{path}"
        self._scratch.write_bytes(len(self._files).to_bytes(4, "big") * (size // 4))
        self.store.put_file(key, self._scratch)
        made = StoredFile(path, key, size, sha256_of(self._scratch), 10**18 - age * 10**9)
        self._files.append(made)

    def add_mark(self, content: str) -> None:
        self._scratch.write_text(content)
        self.store.put_file(f"7/{MARK_FILE}", self._scratch)
        made = StoredFile(f"7/{MARK_FILE}", f"7/{MARK_FILE}", len(content), sha256_of(self._scratch), 10**18)
        self._files.append(made)

    def snapshot(self) -> Manifest:
        manifest = Manifest(7, 7, "2026-11-28T00:00:00Z", 1, tuple(self._files))
        self.store.put_bytes("7/manifest.json", manifest.to_json())
        return manifest


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path / "scratch")


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("pod", "there"),
    [
        ("worker-0", {"state-0.pt", "old/state-0.pt", "state-1.pt", "state-2.pt"}),
        # Own files come first, however old they are.
        ("worker-1", {"state-0.pt", "old/state-0.pt", "state-1.pt", "old/state-1.pt"}),
    ],
)
def test_what_the_volume_has_no_room_for_stays_in_the_bucket_and_is_named(
    pod: str, there: set[str], volume: Path, stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in ((0, ""), (1, "worker-1"), (2, "worker-2")):
        age = 5 * (3 - number)
        stored.add(f"state-{number}.pt", name, 3 * MIB // 2, age)
        stored.add(f"old/state-{number}.pt", name, 3 * MIB // 2, 100 + age, new=False)
    stored.snapshot()
    room = Room({pod})
    assert restore(stored.store, volume, "Auto", Near(room=room))
    assert names(volume) == there
    left = {file.path for file in room.left_out}
    assert left == {f"{folder}state-{number}.pt" for folder in ("", "old/") for number in range(3)} - there
    assert shutil.disk_usage(volume).free >= 3 * MIB // 2, "the next checkpoint has room"
    assert f"has no room for {len(left) * 3 * MIB // 2} bytes of checkpoint files of other pods" in room.text
    assert all(repr(path) in room.text for path in left)
    assert room.text in caplog.text


def test_a_volume_that_others_fill_meanwhile_costs_files_of_other_pods_alone(
    volume: Path, stored: Stored
) -> None:
    stored.add("state-0.pt", "", MIB, 0)
    for number in range(1, 12):
        stored.add(f"state-{number}.pt", f"worker-{number}", MIB, number)
    stored.snapshot()
    # The volume seems to have room for all.
    assert restore(stored.store, volume, "Auto", Near(room=Room((), free=lambda _: 2**40)))
    found = names(volume)
    assert {"state-0.pt", "state-1.pt"} <= found < {f"state-{number}.pt" for number in range(12)}
    assert not [path for path in volume.rglob("*") if path.name.startswith(".")], (
        "nothing is left of the fetch"
    )


def test_without_room_for_what_the_pod_needs_the_restore_fails(volume: Path, stored: Stored) -> None:
    stored.add("state-0.pt", "", 9 * MIB, 0)
    stored.snapshot()
    with pytest.raises(OSError, match="No space left on device"):
        restore(stored.store, volume, "Auto", Near(room=Room({"worker-0"})))


def test_parts_of_a_saved_folder_can_be_brought_later(
    volume: Path, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.add_mark('{"step": 7, "parts": 2}')
    stored.add("7/__0_0.distcp", "", 3 * MIB, 0)
    stored.add("7/__1_0.distcp", "job-1", 3 * MIB, 0)
    stored.snapshot()
    assert restore(stored.store, volume, "Auto", Near(room=Room({"job-0"})))
    assert names(volume / "7") == {MARK_FILE, RECORD_FILE, "__0_0.distcp"}
    monkeypatch.setattr(file_fetch, "open_store", lambda _: stored.store)
    checkpoints.bring(volume / "7", ["__1_0.distcp"])
    assert (volume / "7/__1_0.distcp").stat().st_size == 3 * MIB


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on pods restore into volumes that have room for files of theirs and of rank 0 alone."""

    def apply() -> None:
        from tests.trainer import test_pod_files

        pods = iter(range(3))

        def restored(store, folder, resume):
            room = Room({f"worker-{next(pods)}"}, free=lambda _: 0)
            return restore(store, folder, resume, Near(room=room))

        monkeypatch.setattr(test_pod_files, "restore", restored)

    return apply


def second(tmp_path: Path, bucket: Bucket, clock: object, small: Callable[[], None]) -> Job:  # noqa: F811
    first = Job(tmp_path, bucket, clock)
    for step in (1, 2):
        dcp(first, step)
        first.settle(60)
    assert first.last() == shards_of(1, 2)
    small()
    again = Job(tmp_path, bucket, clock, attempt=2)
    assert names(again.folders[0]) == {
        f"step-{n}/{name}" for n in (1, 2) for name in (".metadata", "__0_0.distcp")
    }
    assert "step-2/__1_0.distcp" in names(again.folders[1])
    assert "step-2/__2_0.distcp" not in names(again.folders[1])
    return again


def test_later_checkpoints_keep_what_a_restore_left_in_the_bucket(tmp_path, bucket, clock, small) -> None:  # noqa: F811
    job = second(tmp_path, bucket, clock, small)
    dcp(job, 3)
    job.settle(150)
    assert job.last() == shards_of(1, 2, 3)
    assert restore(job.store, tmp_path / "whole", "Auto")
    assert names(tmp_path / "whole") == shards_of(1, 2, 3).keys()


def test_they_go_with_their_folder_or_when_their_pod_removes_them(tmp_path, bucket, clock, small) -> None:  # noqa: F811
    job = second(tmp_path, bucket, clock, small)
    for folder in job.folders:
        shutil.rmtree(folder / "step-1")
    (job.folders[2] / "step-2/__2_0.distcp").unlink()
    dcp(job, 3)
    job.settle(150)
    kept = shards_of(2, 3)
    del kept["step-2/__2_0.distcp"]
    assert job.last() == kept


def test_a_path_that_the_program_takes_for_something_else_is_its_own(tmp_path, bucket, clock, small) -> None:  # noqa: F811
    job = second(tmp_path, bucket, clock, small)
    job.write(0, "step-1/__1_0.distcp/inner", "a folder now")
    job.write(0, "step-2/__1_0.distcp", "a file of rank 0")
    dcp(job, 3)
    job.settle(150)
    expected = shards_of(1, 2, 3) | {
        "step-1/__1_0.distcp/inner": "a folder now",
        "step-2/__1_0.distcp": "a file of rank 0",
    }
    del expected["step-1/__1_0.distcp"]
    assert job.last() == expected
