"""A whole job on loopback: a launcher, two workers with a real sshd each, a real mpirun.

* success, failures and killed programs
* SIGTERM at the launcher and at a worker
* hosts that vanish or do not answer
* sshd that cannot start
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trainer.conftest import (
    Launched,
    Workspace,
    free_ports,
    has,
    keys,
    kill_with_descendants,
    until,
)

from dtj.plan.config_map import script
from dtj.plan.horovod import SCRIPTS
from dtj_trainer.contract import History

pytestmark = pytest.mark.skipif(
    not (shutil.which("mpirun") and Path("/usr/sbin/sshd").exists() and shutil.which("ssh")),
    reason="needs openmpi-bin and openssh-server",
)

CONFIG = {"start.sh": script("start.sh"), **SCRIPTS}
"""What the operator mounts into every pod."""

HOSTS = ("127.0.0.2", "127.0.0.3")


class Job:
    """Two workers and a launcher, each in a workspace of its own."""

    def __init__(self, folder: Path, make_workspace: Callable[..., Workspace], environment: dict[str, str]):
        self.port = free_ports(1)[0]
        self.folder = folder
        self._make_keys()
        common = {
            "DTJ_WORLD_SIZE": "2",
            "DTJ_SLOTS_PER_WORKER": "1",
            "DTJ_SSH_PORT": str(self.port),
            "DTJ_PEER_TIMEOUT_SECONDS": "20",
            "PATH": f"{self._programs()}:{os.environ['PATH']}",
            **environment,
        }
        self.workers = [
            make_workspace(f"worker-{index}", DTJ_ROLE="worker", DTJ_INDEX=str(index), **common)
            for index in range(2)
        ]
        ssh = f"-F {self._ssh_config()}"
        self.launcher = make_workspace(
            "launcher",
            DTJ_ROLE="launcher",
            OMPI_MCA_plm_rsh_args=ssh,
            OMPI_MCA_orte_keep_fqdn_hostnames="true",
            # Both hosts are this machine: without this mpirun would start the ranks itself.
            OMPI_MCA_orte_do_not_resolve="true",
            OMPI_MCA_btl_tcp_if_include="lo",
            OMPI_MCA_oob_tcp_if_include="lo",
            **common,
        )
        (self.launcher.config / "hostfile").write_text("".join(f"{host} slots=1\n" for host in HOSTS))
        for worker, host in zip(self.workers, HOSTS, strict=True):
            self._prepare(worker, host)
        for workspace in (self.launcher, *self.workers):
            for name, text in CONFIG.items():
                (workspace.config / name).write_text(text)
                (workspace.root / "run").mkdir(parents=True, exist_ok=True)

    def _programs(self) -> Path:
        """A folder with `dtj-launch`, as an image has it on its PATH."""
        programs = self.folder / "bin"
        programs.mkdir()
        program = programs / "dtj-launch"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dtj_trainer.launch.main "$@"\n')
        program.chmod(0o755)
        return programs

    def _make_keys(self) -> None:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key")], check=True
        )

    def _ssh_config(self) -> Path:
        path = self.folder / "ssh_config"
        path.write_text(
            f"Host *\n  Port {self.port}\n  IdentityFile {self.folder}/key\n  BatchMode yes\n"
            f"  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n  LogLevel ERROR\n"
        )
        return path

    def _prepare(self, worker: Workspace, host: str) -> None:
        # Each orted gets a temporary folder of its own, as in a pod. In one folder an orted fails when another orted
        # creates the same subfolder at the same moment.
        temporary = worker.root / "tmp"
        temporary.mkdir(parents=True)
        worker.config.joinpath("sshd_config").write_text(
            f"Port {self.port}\nListenAddress {host}\nPidFile none\nHostKey {self.folder}/key\n"
            f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nLogLevel ERROR\n"
            f"AuthorizedKeysFile {self.folder}/key.pub\nPermitRootLogin yes\n"
            f"SetEnv DTJ_ROOT={worker.root} TMPDIR={temporary}\n"
        )

    def start_workers(self) -> list[Launched]:
        return [self.start(worker, "unused") for worker in self.workers]

    def run(self, program: str) -> Launched:
        return self.start(self.launcher, sys.executable, "-c", program)

    def start(self, workspace: Workspace, *command: str) -> Launched:
        return workspace.run("/bin/sh", str(workspace.config / "start.sh"), *command)


@pytest.fixture
def make_job(tmp_path: Path, make_workspace: Callable[..., Workspace]) -> Callable[..., Job]:
    Path("/run/sshd").mkdir(exist_ok=True)
    return lambda **environment: Job(tmp_path, make_workspace, environment)


RANKS = """
import os, pathlib, sys, time
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
root = pathlib.Path(os.environ["DTJ_ROOT"])
print("rank", rank, "of", os.environ["OMPI_COMM_WORLD_SIZE"], "in", root.parent.name)
"""


def test_whole_job(make_job, job_uri, job_store):
    history = History(
        namespace="ml", name="mnist", uid="1-2", created="2026-11-25T10:00:00Z", spec_digest="ab",
        strategy="Horovod", world=2,
    )  # fmt: skip
    job = make_job(DTJ_ARTIFACTS_URI=job_uri, DTJ_HISTORY=history.to_json())
    workers = job.start_workers()
    program = RANKS + (
        "from dtj_trainer import progress\n"
        "from dtj_trainer.artifacts import checkpoints\n"
        "progress.report(step=5, total_steps=5, loss=0.5)\n"
        "if rank == 0: checkpoints.save(5, lambda d: (d / 'w').write_text('w'))\n"
    )
    run = job.run(program)
    assert run.ended() == 0, run.output
    assert "[rank 0] rank 0 of 2 in worker-0\n" in run.output
    assert "[rank 1] rank 1 of 2 in worker-1\n" in run.output
    assert "dtj-rank-exit" not in run.output
    message = job.launcher.termination
    assert "class" not in message
    assert message["progress"]["step"] == 5
    assert message["artifacts"]["checkpoint"]["step"] == 5
    assert {"started", "peersReady", "restored", "programStarted", "firstStep", "programEnded", "synced"} == (
        set(message["phases"])
    )
    assert keys(job_store) == [
        "attempt.json",
        "checkpoints/5/.dtj-checkpoint.json",
        "checkpoints/5/manifest.json",
        "checkpoints/5/w",
        "end.json",
        "logs/attempt-1/launcher-0.log",
        "logs/attempt-1/rank-0.log",
        "logs/attempt-1/rank-1.log",
        "metrics.jsonl",
        "run.json",
    ]
    end = json.loads(job_store.get_bytes("end.json"))
    assert (end["by"], end["status"]["phase"], message["recorded"]) == ("launcher-0", "Succeeded", True)
    assert end["status"]["artifacts"]["checkpoint"]["step"] == 5
    for worker in workers:
        worker.terminate()
        assert worker.ended() == 0, worker.output


def test_failing_rank_is_the_cause(make_job, job_uri, job_store):
    job = make_job(DTJ_ARTIFACTS_URI=job_uri)
    workers = job.start_workers()
    program = RANKS + "if rank == 1: print('I give up'); sys.exit(3)\ntime.sleep(300)\n"
    run = job.run(program)
    assert run.ended() == 3, run.output
    message = job.launcher.termination
    assert message["class"] == "ApplicationError"
    assert (message["rank"], message["role"], message["index"], message["exitCode"]) == (1, "worker", 1, 3)
    assert message["lastLogLines"] == ["rank 1 of 2 in worker-1", "I give up"]
    until(lambda: has(job_store, "logs/attempt-1/rank-1.log"), "the failed rank's log is uploaded")
    for worker in workers:
        worker.terminate()
        assert worker.ended() == 0, worker.output
    assert b"I give up" in job_store.get_bytes("logs/attempt-1/rank-1.log")


def test_killed_program(make_job):
    job = make_job()
    job.start_workers()
    run = job.run(
        RANKS + "import signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(300)"
    )
    assert run.ended() == 137, run.output
    message = job.launcher.termination
    assert (message["class"], message["rank"], message["signal"]) == ("Signal", 1, 9)


def test_command_not_there(make_job):
    job = make_job()
    job.start_workers()
    run = job.start(job.launcher, "no-such-program")
    assert run.ended() == 127, run.output
    assert job.launcher.termination["class"] == "CommandNotFound"
    assert job.launcher.termination["message"] == "no-such-program is not on the PATH of the image"


def test_launcher_told_to_stop_leaves_no_process(make_job):
    job = make_job()
    job.start_workers()
    run = job.run(RANKS + "print('pid', os.getpid())\ntime.sleep(300)\n")
    until(lambda: run.output.count("] pid ") == 2, "both ranks run", tell=lambda: run.output)
    pids = [int(line.split()[-1]) for line in run.output.splitlines() if "] pid " in line]
    run.terminate()
    assert run.ended() == 143, run.output
    assert job.launcher.termination["class"] == "Signal"
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "no rank is left")


def test_launcher_told_to_stop_waits_for_the_checkpoint(make_job, job_uri, job_store):
    """Rank 1 leaves at once; rank 0 takes longer to save than mpirun gives it after SIGTERM."""
    job = make_job(DTJ_ARTIFACTS_URI=job_uri)
    workers = job.start_workers()
    run = job.run(
        "import os, signal, sys, time\n"
        "from dtj_trainer.artifacts import checkpoints\n"
        "def leave(*_):\n"
        "    if os.environ['OMPI_COMM_WORLD_RANK'] == '0':\n"
        "        time.sleep(2.5)\n"
        "        checkpoints.save(7, lambda folder: (folder / 'w').write_text('state'))\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, leave)\nprint('trains')\ntime.sleep(300)"
    )
    until(lambda: run.output.count("] trains") == 2, "both ranks run", tell=lambda: run.output)
    run.terminate()
    assert run.ended() == 143, run.output
    assert job.launcher.termination["message"] == "the launcher was told to stop (SIGTERM)"
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.ended()
    assert has(job_store, "checkpoints/7/manifest.json")


def test_worker_told_to_stop_in_the_middle(make_job, job_uri, job_store):
    """An evicted worker uploads what its rank saves at SIGTERM; the launcher blames the lost worker."""
    job = make_job(DTJ_ARTIFACTS_URI=job_uri)
    workers = job.start_workers()
    program = RANKS + (
        "import signal\n"
        "def leave(*_):\n"
        "    (root / 'checkpoints' / 'ckpt-3.pt').write_text('c')\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('runs')\n"
        "time.sleep(300)\n"
    )
    run = job.run(program)
    until(lambda: run.output.count("] runs") == 2, "both ranks run", tell=lambda: run.output)
    workers[0].terminate()
    assert workers[0].ended() == 0, workers[0].output
    assert run.ended() != 0
    message = job.launcher.termination
    assert message["class"] == "ConnectionLost", message
    assert has(job_store, "checkpoints/1/manifest.json")
    assert b"runs" in job_store.get_bytes("logs/attempt-1/rank-0.log")


def test_worker_vanishes(make_job):
    """A node that dies takes sshd, supervisor and rank with it at once."""
    job = make_job()
    workers = job.start_workers()
    run = job.run(RANKS + "print('pid', os.getpid())\ntime.sleep(300)\n")
    until(lambda: run.output.count("] pid ") == 2, "both ranks run", tell=lambda: run.output)
    kill_with_descendants(workers[1].process.pid)
    assert run.ended() != 0
    message = job.launcher.termination
    assert message["class"] == "ConnectionLost", message
    assert HOSTS[1] in message["message"]


def test_hosts_that_do_not_answer(make_workspace):
    port = free_ports(1)[0]
    launcher = make_workspace(DTJ_SSH_PORT=str(port), DTJ_PEER_TIMEOUT_SECONDS="1", DTJ_WORLD_SIZE="2")
    (launcher.config / "hostfile").write_text("127.0.0.1 slots=1\nno-such-host.invalid slots=1\n")
    run = launcher.launch("launcher", "true")
    assert run.ended() == 69
    message = launcher.termination
    assert message["class"] == "PeersUnreachable"
    assert message["message"] == (
        f"after 1 s 2 of 2 hosts can't be reached by ssh on port {port}: 127.0.0.1 (the connection is "
        "refused); no-such-host.invalid (its name does not resolve)"
    )


def test_sshd_that_can_not_start(make_workspace):
    worker = make_workspace()
    (worker.config / "sshd_config").write_text("Port nonsense\n")
    run = worker.launch("worker")
    assert run.ended() == 78
    assert worker.termination["class"] == "ApplicationError"
    assert worker.termination["message"].startswith("sshd ended with exit code 255")
