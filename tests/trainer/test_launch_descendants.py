"""Processes that outlive the user's program: dtj-launch adopts, reaps and ends them. Signals that a thread gets."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trainer.conftest import Launched, Workspace, until

from dtj_trainer.artifacts.store import Store

# A daemon with a session and an environment of its own, or another process of the program's group. It goes on writing
# after the program has ended.
LEAVES_A_DAEMON = """
import os, subprocess, sys
from pathlib import Path
root = Path(os.environ["DTJ_ROOT"])
(root / "model" / "whole.bin").write_bytes(b"whole")
(root / "checkpoints" / "whole.bin").write_bytes(b"whole")
code = '''
import sys, time
opened = [open(path, "wb", buffering=0) for path in sys.argv[1:]]
for file in opened:
    file.write(b"half")
print("writes", flush=True)
while True:
    for file in opened:
        file.write(b"half")
    time.sleep(0.05)
'''
half = [str(root / "checkpoints" / "half.bin"), str(root / "logs" / "endless.log")]
command = [sys.executable, "-c", code, *half]
daemon = subprocess.Popen(command, start_new_session=DAEMON, env={}, stdout=subprocess.PIPE)
daemon.stdout.readline()
print("daemon", daemon.pid)
"""

# Three processes lose their parent, leave its group and session, and end: their parent is dtj-launch then.
ORPHANS = """
import os, subprocess
from pathlib import Path
out = subprocess.run(
    ["sh", "-c", "for i in 1 2 3; do (setsid sleep 0.2 & echo $!); done"], capture_output=True, text=True
)
print("orphans", *out.stdout.split(), "of", os.getppid())
import time
while not Path(os.environ["DTJ_ROOT"], "go").exists():
    time.sleep(0.05)
"""


def as_chief(workspace: Workspace, program: str, job_uri: str) -> Launched:
    return workspace.python(
        program, DTJ_ARTIFACTS_URI=job_uri, DTJ_STRATEGY="ParameterServer", DTJ_ROLE="chief"
    )


def as_rank(workspace: Workspace, program: str, job_uri: str) -> Launched:
    worker = workspace.launch(
        "worker", DTJ_ARTIFACTS_URI=job_uri, DTJ_LOCAL_WORKERS="true", DTJ_PROGRESS_PORT="0"
    )
    worker.says("is ready for")
    variables = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    return workspace.python(program, role="rank", DTJ_ARTIFACTS_URI=job_uri, **variables)


@pytest.mark.parametrize("start", [as_chief, as_rank])
@pytest.mark.parametrize("daemon", [True, False], ids=["daemon", "same group"])
def test_a_process_that_writes_is_ended_and_what_it_had_half_written_is_not_kept(
    workspace: Workspace, job_uri: str, job_store: Store, start: Callable[..., Launched], daemon: bool
) -> None:
    run = start(workspace, LEAVES_A_DAEMON.replace("DAEMON", str(daemon)), job_uri)
    assert run.ended() == 0, run.output
    left = run.output.split("daemon ")[1].split()[0]
    assert not Path("/proc", left).exists()
    assert (f"process {left} outlived the program and is killed" in run.output) is daemon
    assert f"process {left} was writing {workspace.root}/checkpoints/half.bin" in run.output
    stored = [item.key for item in job_store.objects("checkpoints")]
    assert any(key.endswith("/whole.bin") for key in stored)
    assert not any(key.endswith("/half.bin") for key in stored)
    assert job_store.get_bytes("model/whole.bin") == b"whole"


def test_orphans_are_reaped_while_the_program_runs(workspace: Workspace) -> None:
    run = as_chief(workspace, ORPHANS, "")
    run.says("orphans ")
    until(lambda: " of " in run.output, "the whole line")
    *orphans, _, agent = run.output.split("orphans ")[1].split()[:5]
    until(lambda: not any(Path("/proc", orphan).exists() for orphan in orphans), "the orphans' end")
    assert Path("/proc", agent).exists()
    (workspace.root / "go").touch()
    assert run.ended() == 0


@pytest.mark.parametrize("start", [as_chief, as_rank])
def test_a_signal_that_another_thread_gets_stops_the_program(
    workspace: Workspace, job_uri: str, start: Callable[..., Launched]
) -> None:
    """The kernel gives the signal to any thread when the main thread has one pending."""
    run = start(workspace, "import signal\nprint('up')\nsignal.pause()", job_uri)
    run.says("up\n")
    pid = run.process.pid
    others = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir() if int(thread.name) != pid]
    assert ctypes.CDLL(None).tgkill(pid, others[0], int(signal.SIGTERM)) == 0
    assert run.ended() == 143
