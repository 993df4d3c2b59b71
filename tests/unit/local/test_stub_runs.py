"""`dtj run` from the command line to the end, with programs that simulate a training.

* success, failures, retries and the backoff limit
* start deadlines, the TTL and time between two runs
* Ctrl-C once and twice, a killed `dtj`, and `--resume`
* a killed guard, and processes that hide from the run
* a machine that lacks what the job needs
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.job import Manifest
from dtj.local.processes import in_sessions, is_alive, marked
from dtj.local.runs import Runs
from dtj_trainer.contract import TERMINATION_GRACE_SECONDS
from tests.patience import PATIENCE

# Servers listen, as the operator waits for; what the chief does comes behind.
PROGRAM = """
import json, os, pathlib, signal, socket, subprocess, sys, time
config = json.loads(os.environ["TF_CONFIG"])
role, index = config["task"]["type"], config["task"]["index"]
attempt = int(os.environ["DTJ_ATTEMPT"])
marks = pathlib.Path(os.environ["MARKS"])
def told(*_):
    (marks / f"{role}-told").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, told)
if role in ("ps", "worker"):
    (marks / f"{role}-begins-{attempt}").touch()
    while (marks / f"{role}-holds-{attempt}").exists():
        time.sleep(0.05)
    host, port = config["cluster"][role][index].split(":")
    if "MUTE" not in os.environ:
        listener = socket.create_server((host, int(port)))
    while not (marks / f"{role}-ends-{attempt}").exists():
        time.sleep(0.05)
    sys.exit(0)
print(f"attempt {attempt} of the chief")
"""
HIDES = """
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
hidden = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True, **quiet)
(marks / "hiding").write_text(str(hidden.pid))
(marks / "hiding").rename(marks / "hidden")
"""
"""Leaves a process that has neither the environment nor the session of the program."""
SHARES = """
from multiprocessing import shared_memory
shared = shared_memory.SharedMemory(create=True, size=1000)
(marks / "shared").write_text(shared.name)
"""
TRAINS = "(marks / f'trains-{attempt}').touch(); time.sleep(600)\n"


class DtjRun:
    """One `dtj run` as a process."""

    def __init__(self, folder: Path, chief: str, run_policy: Manifest, *options: str) -> None:
        self.home, self.marks = folder / "home", folder / "marks"
        self.marks.mkdir(exist_ok=True)
        file = folder / "job.yaml"
        job = {
            "apiVersion": "dtj.dev/v1alpha1",
            "kind": "DistributedTrainingJob",
            "metadata": {"name": "stub"},
            "spec": {
                "strategy": "ParameterServer",
                "image": "none",
                "command": [sys.executable, "-c", PROGRAM + chief],
                "env": [{"name": "MARKS", "value": str(self.marks)}],
                "replicaSpecs": {"worker": {"replicas": 1}, "ps": {"replicas": 1}},
                "runPolicy": run_policy,
            },
        }
        file.write_text(yaml.safe_dump(job))
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from dtj.cli.main import main; main()", "run", str(file), *options],
            env={**os.environ, "DTJ_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ended(self) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        out, err = self.process.communicate(timeout=60 * PATIENCE)
        return self.process.returncode, out, err

    @property
    def manifest(self) -> dict[str, Any]:
        return Runs(self.home).find("stub").manifest

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 40) -> Any:
        seconds *= PATIENCE
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.05)
        self.process.kill()
        pytest.fail(f"{what}: not within {seconds} s: {self.process.communicate()}")

    def trains(self, attempt: int) -> None:
        self.until((self.marks / f"trains-{attempt}").exists, f"attempt {attempt} trains")

    def left(self) -> list[int]:
        """Processes of the run: the program's words name this test's folder."""
        own = str(self.marks).encode()
        return [p for p in _processes() if own in _environment(p) and p != os.getpid()]

    @property
    def guard(self) -> int:
        """The guard of the run."""
        words = [b"dtj.local.runner", str(self.home).encode()]
        return next(p for p in _processes() if all(word in _proc(p, "cmdline") for word in words))

    def hidden(self) -> int:
        """The process that a program with HIDES left."""
        file = self.marks / "hidden"
        return int(self.until(lambda: file.exists() and file.read_text(), "a process is left"))


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _environment(pid: int) -> bytes:
    return _proc(pid, "environ")


def _proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., DtjRun]]:
    started: list[DtjRun] = []

    def make(chief: str, *options: str, **run_policy: Any) -> DtjRun:
        started.append(DtjRun(tmp_path, chief, run_policy, *options))
        return started[-1]

    yield make
    for run in started:
        run.process.kill()
        run.until(lambda run=run: not run.left(), "nothing is left", 15)


def test_a_worker_that_ends_well_after_its_chief_failed_starts_again_for_the_next_chief(
    start: Callable[..., DtjRun], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    (marks / "ps-holds-2").touch()
    run = start("if attempt == 1: sys.exit(3)")
    # The operator creates the next chief only when the next ps listens.
    run.until((marks / "ps-begins-2").exists, "the ps begins again")
    (marks / "worker-ends-1").touch()
    run.until(
        lambda: run.manifest["status"]["replicaAttempts"].get("worker-0"), "the worker is to start again"
    )
    (marks / "ps-holds-2").unlink()

    code, out, err = run.ended()
    assert code == 0, err
    assert (
        "worker 0 ended with exit code 0 while the other pods still needed it; stub-chief-0 has restarted since"
        in out
    )
    assert run.manifest["status"]["restarts"] == {"application": 1, "infrastructure": 0}


def test_a_job_that_does_not_start_in_time_fails_and_its_run_is_kept_whatever_its_ttl(
    start: Callable[..., DtjRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUTE", "its servers never answer")
    run = start("", startDeadlineSeconds=3, ttlSecondsAfterFinished=0)
    code, out, err = run.ended()
    assert code == 1, err
    assert "StartDeadlineExceeded: not all pods ran in 3 s" in out
    assert "which runs but is not ready" in out
    assert run.left() == []
    assert run.manifest["status"]["phase"] == "Failed"


def test_the_time_before_a_run_goes_on_counts_against_no_deadline(
    start: Callable[..., DtjRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("MUTE", "its servers never answer")
        run = start("", startDeadlineSeconds=3600)
        run.until(lambda: (run.home / "runs/default/stub/ps-0/output.log").exists(), "it starts")
        run.process.kill()
    run.until(lambda: not run.left(), "nothing is left")
    stored = run.manifest
    assert stored["status"]["phase"] != "Running"
    stored["status"]["startTime"] = "2026-01-01T00:00:00Z"
    Runs(run.home).find("stub").write(stored)
    code, out, err = start("", "--resume", startDeadlineSeconds=3600, activeDeadlineSeconds=3600).ended()
    assert code == 0, (out, err)


def test_a_job_that_succeeds(start: Callable[..., DtjRun]) -> None:
    run = start("print('café')\n")
    code, out, err = run.ended()
    assert code == 0, err
    assert "[chief-0] attempt 1 of the chief" in out
    assert "[chief-0] café" in out
    assert "stub: Succeeded" in out
    assert run.left() == []
    stored = Runs(run.home).find("stub")
    assert stored.job.status.phase == "Succeeded"
    reasons = [event["reason"] for event in stored.events]
    # So short a program may have ended before it was seen to run.
    assert [reason for reason in reasons if reason != "JobRunning"] == ["JobSucceeded"]
    assert sorted(stored.outputs) == ["chief-0", "ps-0", "worker-0"]
    assert stored.pid is None
    again = start("", "--resume")
    assert again.ended()[0] == 0


def test_a_program_that_fails_is_tried_again(start: Callable[..., DtjRun]) -> None:
    code, out, err = start("sys.exit(3 if attempt == 1 else 0)\n", "-o", "json").ended()
    assert code == 0, err
    status = json.loads(out)["status"]
    assert status["attempt"] == 2
    assert status["restarts"] == {"application": 1, "infrastructure": 0}
    assert "JobRestarting" in err


def test_a_job_over_its_backoff_limit_has_failed_and_says_why(start: Callable[..., DtjRun]) -> None:
    run = start("print('no such thing'); sys.exit(3)\n", backoffLimit=0)
    code, out, _ = run.ended()
    assert code == 1
    assert "stub: Failed" in out
    assert "ApplicationError: stub-chief-0" in out
    assert "  no such thing" in out
    assert run.manifest["status"]["failure"]["exitCode"] == 3
    code, out, _ = start("", "--resume").ended()
    assert code == 0
    assert run.manifest["status"]["attempt"] == 2
    assert "attempt 2 of the chief" in out


def test_ctrl_c_tells_the_replicas_and_resume_goes_on(start: Callable[..., DtjRun]) -> None:
    run = start(TRAINS)
    run.trains(1)
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
    code, out, err = run.ended()
    assert code == 130, err
    assert (run.marks / "chief-told").exists()
    assert "job.yaml --resume` continues" in out
    assert run.left() == []
    first = run.manifest
    assert (first["status"]["phase"], first["status"]["attempt"]) == ("Suspended", 2), out + err
    code, out, _ = start("assert attempt == 2\n", "--resume").ended()
    assert code == 0, out
    assert run.manifest["metadata"]["uid"] == first["metadata"]["uid"]
    assert run.manifest["status"]["restarts"] == {"application": 0, "infrastructure": 0}


def test_a_second_ctrl_c_does_not_wait(start: Callable[..., DtjRun]) -> None:
    run = start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TRAINS)
    run.trains(1)
    began = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: run.manifest["spec"]["runPolicy"].get("suspend"), "the first is heard")
    run.process.send_signal(signal.SIGINT)
    assert run.ended()[0] == 130
    assert time.monotonic() - began < TERMINATION_GRACE_SECONDS
    assert run.left() == []


def test_nothing_is_left_when_dtj_is_killed_and_resume_goes_on(start: Callable[..., DtjRun]) -> None:
    # A grandchild that leaves its parent's group and session alone.
    run = start("subprocess.Popen(['sleep', '600'], start_new_session=True)\n" + TRAINS)
    run.trains(1)
    taken = start("")
    code, _, err = taken.ended()
    assert code == 2
    assert f"is already running in process {run.process.pid}" in err
    before = run.left()
    assert len(before) >= 4
    run.process.kill()
    run.until(lambda: not run.left(), "nothing is left", 10)
    assert (run.marks / "chief-told").exists()
    run.until(lambda: not list(run.home.glob("runs/*/*/*/run")), "what holds credentials is removed")
    assert run.manifest["status"]["phase"] == "Running"
    assert Runs(run.home).find("stub").pid is None
    code, out, err = start("assert attempt == 2\n", "--resume").ended()
    assert code == 0, (out, err)
    assert run.manifest["status"]["restarts"] == {"application": 0, "infrastructure": 1}


def test_a_process_that_hides_does_not_outlive_the_run_also_if_dtj_launch_was_killed(
    start: Callable[..., DtjRun],
) -> None:
    kills_dtj_launch = "os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)"
    run = start("if attempt == 1:" + textwrap.indent(HIDES + kills_dtj_launch, "    "))
    hidden = run.hidden()
    code, out, err = run.ended()
    try:
        assert code == 0, (out, err)
        assert run.manifest["status"]["attempt"] == 2, out
        assert not is_alive(hidden)
    finally:
        _kill(hidden)


def test_a_run_ends_what_an_earlier_run_left_whose_guard_was_killed_too(
    start: Callable[..., DtjRun],
) -> None:
    run = start(HIDES + SHARES + TRAINS)
    run.trains(1)
    shared = Path("/dev/shm", (run.marks / "shared").read_text())
    assert shared.exists()
    hidden = run.hidden()
    os.kill(run.guard, signal.SIGKILL)
    run.process.kill()
    run.process.communicate()
    try:
        left = run.left()
        assert len(left) >= 3, "the replicas live on"
        code, out, err = start("").ended()
        assert code == 0, (out, err)
        assert f"still run: dtj ends them, after they have saved: {', '.join(map(str, sorted(left)))}" in out
        assert (run.marks / "chief-told").exists()
        assert [pid for pid in (*left, hidden) if is_alive(pid)] == []
        assert not shared.exists()
        assert not list(run.home.glob("runs/*/*/*/run")), "what holds credentials is removed"
    finally:
        for pid in (*run.left(), hidden):
            _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_faults_and_what_this_machine_lacks_are_told_before_anything_is_started(
    start: Callable[..., DtjRun],
) -> None:
    code, _, err = start("", "--name", "Not_a_label").ended()
    assert code == 2
    assert "is not a DNS label" in err
    code, _, err = start("", "--resume").ended()
    assert code == 3
    assert "was not run on this machine" in err
    code, _, err = start("", backoffLimit=-1).ended()
    assert code == 1
    assert "backoffLimit" in err


def test_processes_are_found_by_mark_and_by_session() -> None:
    process = subprocess.Popen(
        ["sh", "-c", "echo up; read end"],
        env={**os.environ, "DTJ_TEST_MARK": "m1"},
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        # Popen does not wait for the end of the exec, in which a process shows no environment.
        assert process.stdout.readline() == b"up\n"
        assert process.pid in marked("DTJ_TEST_MARK", "m1")
        assert marked("DTJ_TEST_MARK", "m") == []
        assert in_sessions([process.pid]) == [process.pid]
    finally:
        process.kill()
        process.communicate()
    assert in_sessions([process.pid]) == []
