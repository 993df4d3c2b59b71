"""`dtj run` under faults of the disk, the shell and the output of the program.

* a full disk, and a home that cannot be written
* Ctrl-C before the first replica runs
* variables of another job in the shell
* output without line ends, of several replicas, and more than the disk is to keep
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dtj.api.errors import DtjError, Unusable
from dtj.api.identity import LABEL_ATTEMPT
from dtj.api.job import Manifest
from dtj.api.job_file import read_job_file
from dtj.cli.main import app
from dtj.cli.run import RunView
from dtj.cli.words import Words
from dtj.local import machine, output, runner, store_keeper
from dtj.local.output import _Tail, follow_outputs
from dtj.local.pod import LocalPod
from dtj.local.runs import Run, Runs, home
from dtj.local.store_choice import ChosenStore, S3Store
from tests.patience import PATIENCE

FILE = """
apiVersion: dtj.dev/v1alpha1
kind: DistributedTrainingJob
metadata: {name: stub}
spec:
  strategy: ParameterServer
  image: none
  command: [sleep, "60"]
  replicaSpecs: {worker: {replicas: 1}, ps: {replicas: 1}}
"""


def test_a_full_disk_ends_the_run_with_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Run.write

    def full(run: Run, manifest: Manifest) -> None:
        if manifest.get("status"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(run, manifest)

    monkeypatch.setattr(Run, "write", full)
    job = read_job_file(FILE, "job.yaml").jobs[0].job
    assert job
    with pytest.raises(
        DtjError, match=r"can't be stored in .*/stub: No space left on device \(\d+ bytes are free there\)"
    ):
        runner.run_job(job, Mock(), home=tmp_path)


def test_a_disk_that_becomes_full_is_told_at_once_and_counts_from_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    now, free = 100.0, runner.LEAST_BYTES
    monkeypatch.setattr(runner, "free_bytes", lambda _: free)
    watch = runner.DiskWatch(tmp_path, told.append, lambda: now)
    assert watch.full_seconds() is None
    assert told == []
    free = 12
    assert watch.full_seconds() == 0
    assert told == [
        f"the disk of {tmp_path} is full, 12 bytes are free: the run ends unless there is space within 10 s"
    ]
    now += 9
    assert watch.full_seconds() == 9
    free = runner.LEAST_BYTES
    assert watch.full_seconds() is None
    free = 0
    assert watch.full_seconds() == 0
    assert len(told) == 2


def test_a_run_whose_disk_was_full_for_a_moment_goes_on_and_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def looks(drive: runner._Drive) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(runner, "free_bytes", lambda _: 0)
            patch.setattr(Run, "write", full)
            drive._cluster.suspend()
            drive._check_disks()
        assert not drive._run.job.spec.run_policy.suspend
        drive._check_disks()
        assert drive._run.job.spec.run_policy.suspend

    monkeypatch.setattr(runner._Drive, "_to_the_end", looks)
    job = read_job_file(FILE, "job.yaml").jobs[0].job
    assert job
    runner.run_job(job, Mock(), home=tmp_path)


@pytest.mark.parametrize("fault", ["this user may make no mount namespace (Operation not permitted)", ""])
def test_where_programs_get_no_workspace_of_their_own_the_run_says_so_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    tried = Mock(return_value=subprocess.CompletedProcess((), 0, fault, ""))
    monkeypatch.setattr(machine.subprocess, "run", tried)
    told: list[str] = []

    async def at_once(drive: runner._Drive) -> None:
        told.append("starts")

    monkeypatch.setattr(runner._Drive, "_to_the_end", at_once)
    job = read_job_file(FILE, "job.yaml").jobs[0].job
    assert job
    runner.run_job(job, Mock(note=told.append), home=tmp_path)
    assert told[-1] == "starts"
    assert [note.partition(". ")[0] for note in told[:-1]] == (
        [f"dtj can't mount a /dtj for each program on this machine: {fault}"] if fault else []
    )
    assert tried.call_args.args[0][-1] == str(tmp_path / "runs/default/stub"), (
        "it is tried where the workspaces are"
    )


def test_no_run_starts_beside_processes_that_can_not_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Runs(tmp_path).run("stub", "default")
    run.folder.mkdir(parents=True)
    (run.folder / "kept").touch()
    monkeypatch.setattr(runner, "marked", lambda *_: [7, 8])
    monkeypatch.setattr(runner, "end_marked", lambda *_: [8])
    job = read_job_file(FILE, "job.yaml").jobs[0].job
    assert job
    with pytest.raises(Unusable, match="processes of an earlier run of stub can't be ended: 8"):
        runner.run_job(job, Mock(), home=tmp_path)
    assert (run.folder / "kept").exists()


def test_ctrl_c_before_there_is_a_replica_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(drive: runner._Drive) -> None:
        drive._interrupted()

    monkeypatch.setattr(runner._Drive, "_to_the_end", interrupted)
    job = read_job_file(FILE, "job.yaml").jobs[0].job
    assert job
    watcher = Mock()
    assert runner.run_job(job, watcher, home=tmp_path).interrupted
    watcher.note.assert_called_with("stopping: no replica of the job runs")


def test_ctrl_c_while_the_store_starts_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("DTJ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(runner, "chosen_store", interrupted)
    file = tmp_path / "job.yaml"
    file.write_text(FILE)
    result = CliRunner().invoke(app, ["run", str(file)])
    assert result.exit_code == 130
    assert "interrupted before any replica was started: no process of the job runs" in result.stdout


def test_a_job_of_another_controller_is_refused(tmp_path: Path) -> None:
    text = FILE + "  runPolicy: {managedBy: kueue.x-k8s.io/multikueue}\n"
    job = read_job_file(text, "job.yaml").jobs[0].job
    assert job
    with pytest.raises(Unusable, match=r"runPolicy\.managedBy is kueue\.x-k8s\.io/multikueue"):
        runner.run_job(job, Mock(), home=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_home_that_cannot_be_written_is_told() -> None:
    run = Runs(Path("/proc/no-such-home")).run("stub", "default")
    with pytest.raises(Unusable, match="dtj can't write to /proc/no-such-home"), run.locked():
        pass


def test_home_is_absolute_as_the_store_has_another_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DTJ_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "here")
    assert home() == Path.cwd() / "here/dtj"


def test_what_another_job_left_in_the_shell_does_not_reach_the_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DTJ_ATTEMPT", "TF_CONFIG", "HOROVOD_LOCAL_RANK", "SLURM_JOB_ID", "PMI_RANK", "AWS_PROFILE"):
        monkeypatch.setenv(name, "other")
    monkeypatch.setenv("MY_OWN", "mine")
    passed_on = runner._machine_environment(ChosenStore(S3Store.EMBEDDED, {"AWS_REGION": "r"}))
    assert "other" not in passed_on.values()
    assert passed_on["MY_OWN"] == "mine"


def test_a_progress_bar_is_held_until_its_line_ends_and_takes_no_memory(tmp_path: Path) -> None:
    file, tail = tmp_path / "output.log", _Tail(0)
    told: list[str] = []
    with file.open("wb") as output:
        for step in range(1000):
            output.write(b"\r%4d/1000 steps of this bar" % step)
            output.flush()
            told += tail.lines(file)
        assert told == []
        assert len(tail._part) < 100
        output.write(b"\r done\r\nlast, without an end")
    [line] = tail.lines(file)
    assert line.endswith("\r done\r")
    assert (tail.rest(), tail.rest()) == (["last, without an end"], [])


def test_bytes_without_any_end_of_line_are_told_in_pieces(tmp_path: Path) -> None:
    file, tail = tmp_path / "output.log", _Tail(0)
    file.write_bytes(b"\xff\x00" * 100_000)
    pieces = [line for _ in range(4) for line in tail.lines(file)] + tail.rest()
    assert sum(map(len, pieces)) == 200_000
    assert max(map(len, pieces)) <= 64 * 1024


PRINTS = """
import pathlib, sys, time
for number in range(60_000):
    print(f"{number:099}")
sys.stdout.flush()
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
print("the end")
"""


@pytest.mark.bound(
    "dtj run",
    "A program that prints without end",
    "Space of `output.log`",
    "128 MB a pod",
)
def test_output_takes_limited_space_and_the_reader_skips_the_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "ROTATE_BYTES", 1 << 20)
    monkeypatch.setattr(output, "MOST_BYTES", 2 << 20)
    file, go, tail = tmp_path / "output.log", tmp_path.with_suffix(".go"), _Tail(0)
    pod = LocalPod(
        {
            "metadata": {"name": "stub-worker-0", "labels": {LABEL_ATTEMPT: "1"}},
            "spec": {
                "containers": [
                    {
                        "name": "trainer",
                        "command": [sys.executable, "-c", PRINTS, str(go)],
                        "env": [{"name": "DTJ_TERMINATION_LOG", "value": str(tmp_path / "termination.json")}],
                    }
                ]
            },
        },
        tmp_path,
        os.environ,
        lambda: datetime.now(UTC),
    )
    deadline = time.monotonic() + 60 * PATIENCE
    while file.stat().st_size < 6_000_000:
        assert time.monotonic() < deadline
        pod.check()
    pod.check()
    assert file.stat().st_size == 6_000_000, "the program goes on at the end"
    assert file.stat().st_blocks * 512 <= 2 << 20

    told = tail.lines(file)
    while tail.behind:
        told += tail.lines(file)
    first = int(told[0])
    assert 30_000 < first < 50_000
    assert told == [f"{number:099}" for number in range(first, 60_000)]
    go.touch()
    while not pod.ended:
        assert time.monotonic() < deadline
        pod.check()
    assert tail.lines(file) == ["the end"]


async def test_the_output_of_fast_programs_is_shown_without_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"worker-0": tmp_path / "0", "worker-1": tmp_path / "1"}
    told: Counter[str] = Counter()
    pauses = 0

    async def pause(seconds: float) -> None:
        nonlocal pauses
        if not seconds:
            return
        pauses += 1
        if pauses == 1:
            for file in files.values():
                file.write_bytes(b"a line of output\n" * 300_000)
        else:
            assert told == dict.fromkeys(files, 300_000), "in one look"
            raise asyncio.CancelledError

    for file in files.values():
        file.touch()
    monkeypatch.setattr(asyncio, "sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        await follow_outputs(cast(Run, SimpleNamespace(outputs=files)), lambda name, _: told.update([name]))


def test_the_command_to_resume_is_one_that_a_shell_takes() -> None:
    words = Words("run", ("job ü.yaml", "--name", "a"), None)
    assert words.line(flag="--resume") == "dtj run 'job ü.yaml' --name a --resume"


def test_sockets_of_a_server_that_has_ended_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_keeper, "SOCKETS", tmp_path)
    names = ["s3-12000", "filer-12001", "admin-grpc-22002", "s3-13000"]
    for name in names:
        (tmp_path / f"seaweedfs-{name}.sock").touch()
    store_keeper._remove_sockets([12000, 12001, 12002])
    assert [path.name for path in tmp_path.iterdir()] == ["seaweedfs-s3-13000.sock"]


def test_lines_are_shown_as_on_a_terminal_by_who_said_them() -> None:
    job = read_job_file(FILE, "job.yaml").jobs[0].job
    assert job
    console = Console(record=True, width=100, file=Mock())
    view = RunView(job, console, quiet=False)
    view.line("launcher-0", "[rank 1] \r 10 %\r100 %\r")
    view.line("worker-0", "\x1b[31mred\x1b[0m")
    assert console.export_text() == "[rank 1] 100 %\n[worker-0] red\n"


@pytest.mark.parametrize("namespace", ["../..", "..", ".", "/etc", "a/b", "Team", "a.b", "x" * 64])
def test_a_namespace_leads_nowhere_but_below_the_folder_of_runs(namespace: str, tmp_path: Path) -> None:
    text = FILE.replace("{name: stub}", f'{{name: stub, namespace: "{namespace}"}}')

    assert [fault.field for fault in read_job_file(text, "job.yaml").faults] == ["metadata.namespace"]
    with pytest.raises(Unusable, match="is not a valid namespace"):
        Runs(tmp_path).run("stub", namespace)
    with pytest.raises(Unusable, match="is not a valid name of a job"):
        Runs(tmp_path).run("..", "default")
