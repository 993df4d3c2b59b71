"""dtj-launch as process 1 of a PID namespace, as in a container without tini."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.trainer.conftest import Launched, Workspace, descendants

CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

pytestmark = pytest.mark.skipif(
    subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode != 0,
    reason="needs the right to make a PID namespace",
)

# Three processes lose their parent and end; their zombies are process 1's.
ORPHANS = """
import os, pathlib, subprocess, sys, time
def states():
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue
            found[entry.name] = rest.split()[0]
    return found
print("process 1 is", pathlib.Path("/proc/1/cmdline").read_bytes().split(b"\\0")[2].decode())
out = subprocess.run(["sh", "-c", "for i in 1 2 3; do (sleep 0.1 & echo $!); done"], capture_output=True, text=True)
orphans = out.stdout.split()
assert len(orphans) == 3
for _ in range(200):
    if not set(orphans) & states().keys():
        break
    time.sleep(0.05)
print("zombies", [pid for pid in orphans if states().get(pid) == "Z"])
"""


@pytest.fixture
def launch(make_workspace: Callable[..., Workspace]) -> Callable[[str], tuple[Workspace, Launched]]:
    def start(program: str) -> tuple[Workspace, Launched]:
        workspace = make_workspace(DTJ_STRATEGY="ParameterServer", DTJ_ROLE="chief")
        main = (sys.executable, "-m", "dtj_trainer.launch.main", "replica", "--")
        return workspace, workspace.run(*CONTAINER, *main, sys.executable, "-c", program)

    return start


def test_orphans_are_reaped_and_the_exit_code_is_the_programs(
    launch: Callable[..., tuple[Workspace, Launched]],
) -> None:
    workspace, run = launch(ORPHANS + "sys.exit(3)")
    assert run.ended() == 3, run.output
    assert "process 1 is dtj_trainer.launch.main" in run.output
    assert "zombies []" in run.output
    assert workspace.termination["exitCode"] == 3


def test_the_kubelets_sigterm_reaches_the_program(launch: Callable[..., tuple[Workspace, Launched]]) -> None:
    _, run = launch(
        "import signal, sys\n"
        "def stop(*_):\n    print('told to stop', flush=True)\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop)\nprint('runs', flush=True)\nsignal.pause()\n"
    )
    run.says("runs")
    process_1 = descendants(run.process.pid)[1]
    os.kill(process_1, signal.SIGTERM)
    assert run.ended() == 143, run.output
    assert "told to stop" in run.output


def test_a_launch_that_is_killed_ends_the_container(
    launch: Callable[..., tuple[Workspace, Launched]],
) -> None:
    _, run = launch("import signal\nprint('runs', flush=True)\nsignal.pause()")
    run.says("runs")
    launched = descendants(run.process.pid)[2]
    os.kill(launched, signal.SIGKILL)
    assert run.ended() == 137, run.output
