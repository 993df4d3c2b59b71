"""Which files a snapshot has, by how a program writes files and how it ends. Real processes write the files.

* programs that end, are killed, or still run
* renamed files and open files
* machines without inotify
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.conftest import until
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer.artifacts.capture import SHORT_SETTLE
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence
from dtj_trainer.artifacts.folder_captures import FolderWatch
from dtj_trainer.artifacts.open_files import held_open
from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.launch.processes import runs
from dtj_trainer.launch.program import Program

# How a program writes step 1. Each prints when it has done so, and goes on until it is ended.
RENAMED = "open('.new', 'w').write('x'); os.rename('.new', 'ckpt-1.pt')"
CLOSED = "open('ckpt-1.pt', 'w').write('x')"
OPEN = "kept = open('ckpt-1.pt', 'w'); kept.write('half'); kept.flush()"
DIRECTORY_RENAMED = "os.mkdir('.new'); open('.new/w', 'w').write('x'); os.rename('.new', 'ckpt-1')"
DIRECTORY_CLOSED = "os.mkdir('ckpt-1'); open('ckpt-1/w', 'w').write('x')"
DIRECTORY_OPEN = "os.mkdir('ckpt-1'); kept = open('ckpt-1/w', 'w'); kept.write('half'); kept.flush()"
ARCHIVE = "zipfile.ZipFile('ckpt-1.pt', 'w').writestr('w', 'x')"
TORN_ARCHIVE = "open('ckpt-1.pt', 'wb').write(b'PK\\x03\\x04' + bytes(100))"

EXIT_0, EXIT_3 = "sys.exit()", "sys.exit(3)"
WAITS = "signal.pause()"
"""For SIGTERM, at which it exits with 143 by itself, or for SIGKILL, as the kernel sends it for want of memory."""

PROGRAM = """
import os, signal, sys, zipfile
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
{writes}
print('written', flush=True)
sys.stdin.readline()
{ends}
"""
LONG_AGO_NS = 60 * 10**9


class Run:
    """One program in a folder, and what the bucket has of it."""

    def __init__(self, folder: Path, settle_seconds: float = 0.0) -> None:
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None
        job = MemoryStore(Bucket(), Gate())
        self._store = job.below("checkpoints")
        self._uploader = CheckpointUploader(
            folder,
            self._store,
            fence=Fence(job, "attempt.json", 1),
            keep=3,
            settle_seconds=settle_seconds,
            step_at=lambda _: None,
            program_runs=self._runs,
        )
        self._uploader.start()

    def _runs(self) -> bool:
        return self._process is None or runs(self._process.pid)

    def start(self, writes: str, ends: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(writes=writes, ends=ends)],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "written\n"

    def end(self, number: int | None = None) -> int:
        """Let it end, by a signal if one is given; its exit code."""
        assert self._process is not None
        if number is not None:
            self._process.send_signal(number)
        self._process.communicate("\n")
        return self._process.returncode

    def kill(self) -> None:
        """Kill the program, and leave its exit status unread, as before its end is noticed."""
        assert self._process is not None
        self._process.kill()
        until(lambda: not self._runs(), "the kernel ends it")

    def complete(self, *, ended: bool = False, died_ns: int | None = None) -> set[str]:
        """Upload what is complete; return the names that the newest snapshot has in the folder."""
        self._uploader.upload_pass(ended=ended, died_ns=died_ns)
        newest = read_index(self._store).newest_first()[:1]
        return {path for manifest in newest for path in manifest.paths if "/" not in path}

    def heard(self) -> None:
        """Wait until the kernel's news of all that was written so far is read."""
        marker = self.folder / ".heard"
        marker.with_name(".written").touch()
        marker.with_name(".written").rename(marker)
        watch = self._uploader._captures._looks._watch
        until(lambda: watch.was_renamed(marker.name), "the news")
        marker.unlink()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    if made._process is not None:
        made._process.kill()
        made._process.communicate()


ALL = (RENAMED, CLOSED, OPEN, DIRECTORY_RENAMED, DIRECTORY_CLOSED, DIRECTORY_OPEN, ARCHIVE, TORN_ARCHIVE)
NEVER_WHOLE = {TORN_ARCHIVE}
HALF = {OPEN, DIRECTORY_OPEN}


@pytest.mark.parametrize("writes", ALL)
@pytest.mark.parametrize(("ends", "number", "code"), [(EXIT_0, None, 0), (EXIT_3, None, 3), (WAITS, 15, 143)])
def test_of_a_program_that_ended_by_itself_all_that_is_closed_counts(run, writes, ends, number, code):
    run.start(writes, ends)
    assert run.end(number) == code
    assert bool(run.complete(ended=True)) == (writes not in NEVER_WHOLE)


@pytest.mark.parametrize("writes", ALL)
def test_of_a_program_that_was_killed_counts_what_was_renamed_or_is_whole(tmp_path, writes):
    run = Run(tmp_path, settle_seconds=5)
    run.start(writes, WAITS)
    run.heard()
    run.end(signal.SIGKILL)
    run.heard()
    # The last seconds tell nothing of other files that were written in their place: see the next test.
    assert bool(run.complete(died_ns=time.time_ns())) == (writes in {RENAMED, DIRECTORY_RENAMED, ARCHIVE})


def test_what_was_closed_a_while_before_the_kill_counts_and_what_the_kill_closed_does_not(run, monkeypatch):
    monkeypatch.setattr(
        run._uploader._captures, "_not_before", math.inf
    )  # No capture while the program runs.
    run.start("kept = open('ckpt-2.pt', 'w'); kept.write('half'); kept.flush()", WAITS)
    assert run.complete() == set()
    (run.folder / "ckpt-1.pt").write_text("x")
    assert run.complete() == set()
    run.end(signal.SIGKILL)
    # What is older than the torn file counts, and what came later does not: it may be a pointer to the torn file.
    assert run.complete(died_ns=time.time_ns()) == set()


def test_what_was_closed_before_something_torn_began_counts(run, monkeypatch):
    monkeypatch.setattr(run._uploader._captures, "_not_before", math.inf)
    run.start(CLOSED, WAITS)
    run.complete()
    (run.folder / "ckpt-2.pt").write_text("x")
    with (run.folder / "ckpt-3.pt").open("w") as kept:
        kept.write("half")
        kept.flush()
        run.complete()
        run.end(signal.SIGKILL)
    found = run.complete(died_ns=time.time_ns())
    assert "ckpt-1.pt" in found
    assert "ckpt-3.pt" not in found


@pytest.mark.parametrize("inotify", [True, False])
@pytest.mark.parametrize("writes", [OPEN, DIRECTORY_OPEN])
def test_what_the_kernel_closed_never_counts_however_late_the_death_is_noticed(
    run, writes, inotify, monkeypatch
):
    if not inotify:
        monkeypatch.setattr(FolderWatch, "was_renamed", lambda *_: False)
    run.start(writes, WAITS)
    later = time.time_ns() + LONG_AGO_NS
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert run.complete() == set()
    run.kill()
    if inotify:
        run.heard()
    assert run.complete() == set()
    assert run.complete(died_ns=later) == set()


@pytest.mark.parametrize("writes", ALL)
def test_while_the_program_runs_what_is_open_is_never_complete_however_quiet(run, writes, monkeypatch):
    run.start(writes, WAITS)
    run.heard()
    later = time.time_ns() + LONG_AGO_NS
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert bool(run.complete()) == (writes not in HALF | NEVER_WHOLE)


def test_a_renamed_file_does_not_wait_for_quiet(tmp_path, monkeypatch):
    run = Run(tmp_path, settle_seconds=60)
    run.start(RENAMED, EXIT_0)
    run.heard()
    later = time.time_ns() + SHORT_SETTLE
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert run.complete() == {"ckpt-1.pt"}
    run.end()


def test_a_file_that_is_written_again_after_it_was_renamed_is_not_complete(run, monkeypatch):
    run.start(RENAMED + "; kept = open('ckpt-1.pt', 'a'); kept.write('x'); kept.flush()", EXIT_0)
    run.heard()
    later = time.time_ns() + LONG_AGO_NS
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert run.complete() == set()


@pytest.mark.parametrize("writes", [CLOSED, OPEN, DIRECTORY_CLOSED, DIRECTORY_OPEN])
def test_without_inotify_proc_tells_what_is_open(run, writes, monkeypatch):
    monkeypatch.setattr(FolderWatch, "was_renamed", lambda *_: False)
    run.start(writes, WAITS)
    later = time.time_ns() + LONG_AGO_NS
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert bool(run.complete()) == (writes not in HALF)
    run.end(signal.SIGKILL)
    assert bool(run.complete(died_ns=later)) == (writes not in HALF)


def test_held_open_finds_writers_and_no_readers(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    status = path.stat()
    with path.open():
        assert status.st_ino not in held_open(status.st_dev)
    with path.open("a"):
        assert status.st_ino in held_open(status.st_dev)
        assert status.st_ino not in held_open(status.st_dev + 1)


@pytest.mark.parametrize(
    ("command", "killed"),
    [
        ("exit 0", False),
        ("exit 3", False),
        ("exit 143", False),
        ("kill -KILL $$", True),
        ("sh -c 'kill -KILL $$'; exit $?", True),
        ("sh -c 'kill -SEGV $$'; exit $?", True),
    ],
)
def test_whether_a_program_was_killed_is_told_through_a_shell_too(command: str, killed: bool) -> None:
    program = Program(["sh", "-c", command], {}, lambda _: None)
    assert (program.start() or program.wait()).killed is killed
