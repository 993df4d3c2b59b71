"""Stacks of a hanging program: requested over HTTP, printed in the logs, and stored in the bucket.

* hung replicas and hung ranks
* machines without py-spy, and a py-spy that hangs
* processes that are stopped or have ended
* a request soon after another
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import pytest
from tests.patience import PATIENCE
from tests.trainer.conftest import Workspace, free_ports, has, until

from dtj_trainer.launch import status_server
from dtj_trainer.launch.processes import RunningPrograms

HANGS = """
import subprocess, sys, threading

def the_other_thread_waits():
    threading.Event().wait()

def waits_for_a_lock_that_nobody_gives_back():
    lock = threading.Lock()
    lock.acquire()
    print("hangs", flush=True)
    lock.acquire()

def the_child_waits_too():
    print("waits", flush=True)
    threading.Event().wait()

if "child" in sys.argv:
    the_child_waits_too()
threading.Thread(target=the_other_thread_waits).start()
child = subprocess.Popen([sys.executable, sys.argv[0], "child"], stdout=subprocess.PIPE)
child.stdout.readline()
subprocess.Popen(["sleep", "300"])
waits_for_a_lock_that_nobody_gives_back()
"""


def post(port: int, path: str = "/stacks") -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=b"", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10 * PATIENCE) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    program = tmp_path / "hangs.py"
    program.write_text(HANGS)
    return program


def test_a_hung_replica_tells_where_it_hangs(make_workspace, hanging, job_uri, job_store):
    port = free_ports(1)[0]
    workspace = make_workspace(
        DTJ_STRATEGY="ParameterServer",
        DTJ_ROLE="worker",
        DTJ_INDEX="1",
        DTJ_ATTEMPT="3",
        DTJ_ARTIFACTS_URI=job_uri,
        DTJ_PROGRESS_PORT=str(port),
    )
    run = workspace.launch("replica", sys.executable, str(hanging))
    run.says("hangs")

    assert post(port) == 202
    assert post(port, "/progress") == 404

    key = "logs/attempt-3/stacks-worker-1-1.txt"
    until(lambda: has(job_store, key), "the stacks are in the bucket")
    text = job_store.get_bytes(key).decode()
    assert "waits_for_a_lock_that_nobody_gives_back (hangs.py:" in text
    assert "the_other_thread_waits (hangs.py:" in text
    assert "the_child_waits_too (hangs.py:" in text
    assert text.count("\n== process ") == 3
    sleep = text.split("== process ")[-1]
    assert "sleep 300" in sleep.splitlines()[0]
    assert "no Python stack: py-spy: " in sleep
    assert "(sleep): S (sleeping)" in sleep
    assert run.process.poll() is None


def test_the_ranks_of_a_worker_tell_it_each_in_a_file_of_its_own(
    worker: Workspace, hanging: Path, job_uri, job_store
) -> None:
    port = free_ports(1)[0]
    supervisor = worker.launch("worker", DTJ_ARTIFACTS_URI=job_uri, DTJ_PROGRESS_PORT=str(port))
    supervisor.says("is ready for")
    for rank in ("2", "3"):
        worker.launch(
            "rank",
            sys.executable,
            str(hanging),
            OMPI_COMM_WORLD_RANK=rank,
            OMPI_COMM_WORLD_SIZE="4",
        )
        supervisor.says(f"rank {rank} runs as")
    until(lambda: all("hangs" in worker.log(f"rank-{n}.log") for n in (2, 3)), "both hang")

    assert post(port) == 202

    for rank in (2, 3):
        key = f"logs/attempt-1/stacks-{rank}-1.txt"
        until(lambda key=key: has(job_store, key), key)
        assert "waits_for_a_lock_that_nobody_gives_back" in job_store.get_bytes(key).decode()


@pytest.fixture
def worker(make_workspace) -> Workspace:
    """A worker's workspace of a job whose ranks all run on this machine, without ssh."""
    return make_workspace(DTJ_ROLE="worker", DTJ_LOCAL_WORKERS="here")


@pytest.fixture
def hung(hanging: Path):
    process = subprocess.Popen(
        [sys.executable, str(hanging)], stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout
    assert process.stdout.readline() == "hangs\n"
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_without_py_spy_the_kernel_tells_what_each_thread_waits_for(hung, monkeypatch) -> None:
    monkeypatch.setattr(status_server, "_py_spy", lambda: None)

    text = status_server.stacks_of(hung.pid)

    first = text.split("== process ")[1]
    assert "no Python stack: py-spy is not installed here" in first
    assert first.count("\nthread ") == 2
    assert "S (sleeping)" in first


def test_a_process_that_is_stopped_is_read_and_left_as_it_is(hung) -> None:
    os.kill(hung.pid, signal.SIGSTOP)
    until(lambda: status_server._state(hung.pid) == "T", "it is stopped")

    text = status_server.stacks_of(hung.pid)

    assert "waits_for_a_lock_that_nobody_gives_back" in text.split("== process ")[1]
    assert status_server._state(hung.pid) == "T"


def test_a_py_spy_that_hangs_is_ended_and_the_process_goes_on(hung, monkeypatch, tmp_path) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nkill -STOP $3\nexec sleep 300\n")
    slow.chmod(0o755)
    monkeypatch.setattr(status_server, "_py_spy", lambda: str(slow))
    monkeypatch.setattr(status_server, "PROCESS_SECONDS", 0.5)

    text = status_server.stacks_of(hung.pid)

    assert "timed out after" in text
    assert "(python" in text
    until(lambda: status_server._state(hung.pid) == "S", "it goes on")


def test_a_program_that_has_ended_leaves_no_file(tmp_path: Path) -> None:
    programs = RunningPrograms()
    programs.began("0", 1)
    programs.ended("0")

    status_server.Stacks(tmp_path, programs).ask()

    assert list(tmp_path.iterdir()) == []


def test_a_second_stall_soon_after_the_first_has_stacks_of_its_own(hung, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(status_server, "INTERVAL_SECONDS", 1.0)
    programs = RunningPrograms()
    programs.began("0", hung.pid)
    asked = status_server.Stacks(tmp_path, programs)

    for name in ("stacks-0-1.txt", "stacks-0-2.txt"):
        asked.ask()
        until((tmp_path / name).exists, name)
        assert "waits_for_a_lock_that_nobody_gives_back" in (tmp_path / name).read_text()


def waits_after_requests(monkeypatch, folder: Path, *times: float) -> list[float]:
    """Ask at these times; return the seconds that each dump waits for its start."""
    clock, waits = iter(times), []
    timer = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(status_server, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(
        status_server,
        "threading",
        SimpleNamespace(Lock=Lock, Timer=lambda wait, *_: waits.append(wait) or timer),
    )
    asked = status_server.Stacks(folder, RunningPrograms())
    for _ in times:
        asked.ask()
    return waits


def test_requests_that_wait_share_a_dump(monkeypatch, tmp_path) -> None:
    waits = waits_after_requests(monkeypatch, tmp_path, 100.0, 105.0, 129.0, 131.0, 300.0)
    assert waits == [0.0, 25.0, 29.0, 0.0]


def test_after_many_dumps_the_next_ones_are_rare(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(status_server, "MANY", 2)
    assert waits_after_requests(monkeypatch, tmp_path, 100.0, 200.0, 300.0) == [0.0, 0.0, 3500.0]
