"""A whole Horovod job on this machine without ssh: a launcher and workers, ranks started by mpirun and by gloo.

* success, failures and killed ranks
* SIGTERM and the last checkpoint
* workers that do not come, missing Horovod
* workspaces and addresses
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import warm
from tests.trainer.conftest import (
    REPOSITORY,
    Launched,
    Workspace,
    descendants,
    has,
    keys,
    pod_variable,
    until,
)
from tests.trainer.idx_files import write_pictures

from dtj.plan.config_map import script
from dtj.plan.horovod import SCRIPTS
from dtj_trainer.launch.mpirun_hosts import local_mpirun_environment
from dtj_trainer.launch.settings import SettingsError, control_socket, read_settings
from dtj_trainer.launch.supervisor_socket import ControlServer, connect

STARTERS = [
    pytest.param(
        "mpi", marks=pytest.mark.skipif(not shutil.which("mpirun"), reason="needs openmpi-bin"), id="mpi"
    ),
    pytest.param("gloo", marks=pytest.mark.torch, id="gloo"),
]


class Job:
    """Workers and a launcher, each in a workspace of its own, as `dtj run` gives them."""

    def __init__(
        self,
        folder: Path,
        make_workspace: Callable[..., Workspace],
        workers: int,
        slots: int,
        environment: dict[str, str],
    ) -> None:
        programs = folder / "bin"
        programs.mkdir()
        program = programs / "dtj-launch"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dtj_trainer.launch.main "$@"\n')
        program.chmod(0o755)
        config = folder / "config"
        config.mkdir()
        for name, text in {"start.sh": script("start.sh"), **SCRIPTS}.items():
            (config / name).write_text(text)
        common = {
            "DTJ_CONFIG_DIR": str(config),
            "DTJ_WORLD_SIZE": str(workers * slots),
            "DTJ_SLOTS_PER_WORKER": str(slots),
            "DTJ_LOCAL_WORKERS": str(folder / "run" / "worker-"),
            "DTJ_PEER_TIMEOUT_SECONDS": "20",
            "OMP_NUM_THREADS": "1",
            "TINI_SUBREAPER": "",
            "PATH": f"{programs}:{os.environ['PATH']}",
            **environment,
        }

        def pod(role: str, index: int) -> Workspace:
            root = folder / "run" / f"{role}-{index}"
            (root / "run").mkdir(parents=True)
            name = f"pod-{role}-{index}"
            made = make_workspace(name, DTJ_ROLE=role, DTJ_INDEX=str(index), DTJ_ROOT=str(root), **common)
            made.root = root
            return made

        self.workers = [pod("worker", index) for index in range(workers)]
        self.launcher = pod("launcher", 0)

    def start_workers(self) -> list[Launched]:
        return [self._start(worker, "unused") for worker in self.workers]

    def run(self, *command: str) -> Launched:
        return self._start(self.launcher, *command)

    def python(self, program: str) -> Launched:
        return self.run(sys.executable, "-c", RANK + program)

    def _start(self, workspace: Workspace, *command: str) -> Launched:
        return workspace.run("/bin/sh", f"{workspace.environment['DTJ_CONFIG_DIR']}/start.sh", *command)


RANK = """
import os, pathlib, signal, sys, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["HOROVOD_RANK"])
root = pathlib.Path(os.environ["DTJ_ROOT"])
print("rank", rank, "is in", root.name)
"""


@pytest.fixture
def make_job(tmp_path: Path, make_workspace: Callable[..., Workspace]) -> Callable[..., Job]:
    def make(workers: int = 2, slots: int = 1, **environment: str) -> Job:
        return Job(tmp_path, make_workspace, workers, slots, environment)

    return make


def stop(workers: list[Launched]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        assert worker.ended() == 0, worker.output


@pytest.mark.torch
@pytest.mark.parametrize("ranks_by", STARTERS)
def test_a_training_runs_to_its_end(make_job, tmp_path, job_uri, job_store, ranks_by):
    data = write_pictures(tmp_path / "data", 64, 16)
    job = make_job(DTJ_RANKS_BY=ranks_by, DTJ_ARTIFACTS_URI=job_uri)
    started = job.start_workers()
    program = "dtj_trainer.programs.horovod_image_classification"
    run = job.run(
        *(warm.python("torch"), "-m", program, f"--data={data}", "--no-export"),
        *("--batch-size=8", "--max-steps=4", "--model=cnn"),
    )
    assert run.ended(60) == 0, run.output
    assert "the weights are the same on all 2 ranks" in run.output
    assert "[rank 0] " in run.output
    assert "dtj-rank-exit" not in run.output
    message = job.launcher.termination
    assert "class" not in message
    assert message["progress"]["step"] == message["artifacts"]["checkpoint"]["step"] == 4
    kept = set(keys(job_store))
    logs = {f"logs/attempt-1/{name}.log" for name in ("launcher-0", "rank-0", "rank-1")}
    assert {"checkpoints/4/manifest.json", "model/model.pt"} | logs <= kept
    stop(started)


@pytest.mark.parametrize(("workers", "slots"), [(1, 2), (2, 2)])
@pytest.mark.parametrize("ranks_by", STARTERS)
def test_each_rank_runs_in_the_workspace_of_its_worker(make_job, ranks_by, workers, slots):
    job = make_job(workers, slots, DTJ_RANKS_BY=ranks_by)
    started = job.start_workers()
    run = job.python(
        "print('environment', os.environ['DTJ_INDEX'], os.environ['DTJ_ROLE'])\n"
        "pathlib.Path('/dtj', f'by-{rank}').write_text(root.name)"
    )
    assert run.ended() == 0, run.output
    for rank in range(workers * slots):
        index = rank // slots
        log = (job.workers[index].root / f"logs/rank-{rank}.log").read_text()
        assert log == f"rank {rank} is in worker-{index}\nenvironment {index} worker\n"
        assert f"[rank {rank}] rank {rank} is in worker-{index}\n" in run.output
        assert (job.workers[index].root / f"by-{rank}").read_text() == f"worker-{index}"
    stop(started)


@pytest.mark.parametrize("ranks_by", STARTERS)
def test_the_rank_that_fails_is_the_cause(make_job, ranks_by):
    job = make_job(DTJ_RANKS_BY=ranks_by)
    started = job.start_workers()
    run = job.python("if rank == 1: print('I give up'); sys.exit(3)\ntime.sleep(300)")
    assert run.ended() == 3, run.output
    message = job.launcher.termination
    assert message["class"] == "ApplicationError"
    assert (message["rank"], message["role"], message["index"], message["exitCode"]) == (1, "worker", 1, 3)
    assert message["lastLogLines"] == ["rank 1 is in worker-1", "I give up"]
    stop(started)


@pytest.mark.parametrize("ranks_by", STARTERS)
def test_a_launcher_told_to_stop_waits_for_the_checkpoint(make_job, job_uri, job_store, ranks_by):
    """Rank 1 leaves at once; rank 0 takes longer to save than mpirun gives it after SIGTERM."""
    job = make_job(DTJ_RANKS_BY=ranks_by, DTJ_ARTIFACTS_URI=job_uri)
    started = job.start_workers()
    run = job.python(
        "from dtj_trainer.artifacts import checkpoints\n"
        "def leave(*_):\n"
        "    if rank == 0:\n"
        "        time.sleep(2.5)\n"
        "        checkpoints.save(7, lambda folder: (folder / 'w').write_text('state'))\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, leave)\nprint('trains')\ntime.sleep(300)"
    )
    until(lambda: run.output.count("] trains") == 2, "both ranks run", tell=lambda: run.output)
    run.terminate()
    assert run.ended() == 143, run.output
    message = job.launcher.termination
    assert (message["class"], message["signal"]) == ("Signal", signal.SIGTERM)
    assert message["message"] == "the launcher was told to stop (SIGTERM)"
    stop(started)
    assert has(job_store, "checkpoints/7/manifest.json")


@pytest.mark.parametrize("ranks_by", STARTERS)
def test_ranks_that_leave_with_0_when_told_to_stop_have_not_succeeded(make_job, ranks_by):
    job = make_job(DTJ_RANKS_BY=ranks_by)
    job.start_workers()
    run = job.python("signal.signal(15, lambda *_: sys.exit(0))\nprint('trains')\ntime.sleep(300)")
    until(lambda: run.output.count("] trains") == 2, "both ranks run", tell=lambda: run.output)
    run.terminate()
    assert run.ended() == 143, run.output
    assert job.launcher.termination["class"] == "Signal"


@pytest.mark.torch
def test_a_killed_rank_is_named(make_job):
    job = make_job(DTJ_RANKS_BY="gloo")
    job.start_workers()
    run = job.python("if rank == 1: os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(300)")
    assert run.ended() == 137, run.output
    message = job.launcher.termination
    assert (message["class"], message["rank"]) == ("Signal", 1)


@pytest.mark.torch
def test_gloo_listens_on_loopback_only(make_job):
    job = make_job(DTJ_RANKS_BY="gloo")
    job.start_workers()
    run = job.python("print('runs')\ntime.sleep(300)")
    until(lambda: run.output.count("] runs") == 2, "both ranks run", tell=lambda: run.output)
    told = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    ours = descendants(run.process.pid)
    listening = [line.split()[3] for line in told.splitlines() if any(f"pid={pid}," in line for pid in ours)]
    assert {address.rpartition(":")[0] for address in listening} == {"127.0.0.1"}


@pytest.mark.parametrize("ranks_by", STARTERS)
def test_a_killed_launcher_leaves_no_process(make_job, ranks_by):
    job = make_job(DTJ_RANKS_BY=ranks_by, DTJ_LOCAL_RUN="killed-launcher")
    job.start_workers()
    run = job.python("print('pid', os.getpid(), os.getppid())\ntime.sleep(300)")
    until(lambda: run.output.count("] pid ") == 2, "both ranks run", tell=lambda: run.output)
    pids = [pid for line in run.output.splitlines() if "] pid " in line for pid in line.split()[-2:]]
    kill_launch(run.process.pid)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "no rank is left")


def kill_launch(pid: int) -> None:
    """Kill the launcher itself, which may run below tini."""
    for process in descendants(pid):
        if b"dtj_trainer.launch.main\0launcher" in Path(f"/proc/{process}/cmdline").read_bytes():
            os.kill(process, signal.SIGKILL)
            return  # What is below it is ending already.


def test_workers_that_never_come_are_named(make_job):
    job = make_job(DTJ_PEER_TIMEOUT_SECONDS="0.5")
    run = job.run("true")
    assert run.ended() == 69
    message = job.launcher.termination
    assert message["class"] == "PeersUnreachable"
    assert message["message"] == (
        "after 0.5 s 2 of 2 workers are not ready: worker-0, worker-1 (its supervisor does not answer)"
    )


def test_without_horovod_the_launcher_says_what_to_install(make_job, tmp_path):
    """A stand-in shadows the Horovod that is installed here."""
    (tmp_path / "none" / "horovod").mkdir(parents=True)
    (tmp_path / "none" / "horovod" / "__init__.py").write_text("raise ImportError('No module named horovod')")
    job = make_job(1, DTJ_RANKS_BY="gloo", PYTHONPATH=f"{tmp_path}/none:{REPOSITORY}/trainer")
    job.start_workers()
    run = job.run("true")
    assert run.ended() == 127, run.output
    assert job.launcher.termination["class"] == "CommandNotFound"
    assert job.launcher.termination["message"] == (
        "ranks can't be started by gloo: No module named horovod; install horovod, or mpirun (openmpi-bin)"
    )


def test_a_workspace_may_lie_deeper_than_a_sockets_name_is_long(tmp_path):
    root = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 6)
    path = control_socket(root)
    path.parent.mkdir(parents=True)
    assert len(bytes(path)) > 108
    assert connect(path) is None
    ControlServer(path, None).start()
    client = connect(path)
    assert client is not None
    client.close()


def test_the_rank_is_of_mpi_or_of_gloo():
    pod = pod_variable({})
    assert read_settings(pod).rank is None
    by_gloo = {**pod, "HOROVOD_RANK": "3", "HOROVOD_SIZE": "4"}
    assert read_settings(by_gloo).rank == 3
    assert read_settings({**by_gloo, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}).rank == 0
    with pytest.raises(SettingsError, match="DTJ_RANKS_BY must be mpi or gloo, not 'ssh'"):
        read_settings({**pod, "DTJ_RANKS_BY": "ssh"})


@pytest.mark.parametrize(("user", "way"), [(0, None), (1000, "none")])
def test_open_mpi_is_told_that_ranks_of_users_have_namespaces_of_their_own(monkeypatch, user, way):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert local_mpirun_environment({}).get("OMPI_MCA_btl_vader_single_copy_mechanism") == way
    chosen = {"OMPI_MCA_btl_vader_single_copy_mechanism": "cma"}
    assert local_mpirun_environment(chosen).items() >= chosen.items()
