"""Horovod jobs that start their ranks again in living pods: a launcher and two workers on this machine.

* a killed rank, wrapper, mpirun, gloo starter or orted, and two killed at once
* no newer checkpoint, a blocked port, a lost sshd: new pods, as without rounds
* a bare PyTorch script
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest
from tests.trainer.conftest import Launched, descendants, free_ports, get_json, until
from tests.trainer.test_launch_local import RANK, STARTERS, make_job, stop  # noqa: F401 - a fixture
from tests.trainer.test_launch_mpi import make_job as make_ssh_job  # noqa: F401 - a fixture
from tests.trainer.test_launch_mpi import pytestmark as needs_ssh

from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.store import Store
from dtj_trainer.launch.processes import runs

PROGRAM = (
    RANK
    + """
checkpoints = root / "checkpoints"
signals = pathlib.Path("%s")
step = max((int(path.stem) for path in checkpoints.glob("*.pt")), default=0)
print("begins at", step, "as", os.getpid(), os.getppid())
while not (signals / "end").exists():
    if rank == 0 and (signals / "save").exists():
        (signals / "save").unlink()
        step += 1
        (checkpoints / "new").write_text(f"state {step}")
        (checkpoints / "new").rename(checkpoints / f"{step}.pt")
        print("saved", step)
    time.sleep(0.02)
"""
)
"""A program that saves when it is told to."""
BEGINS = re.compile(r"\[rank (\d)\] begins at (\d+) as (\d+) (\d+)")


needs_mpirun = pytest.mark.skipif(not shutil.which("mpirun"), reason="needs openmpi-bin")


def barrier() -> dict[str, str]:
    """The variable that lets the pods of a Horovod job hold rounds."""
    return {"DTJ_START_BARRIER": f"127.0.0.1:{free_ports(1)[0]}"}


class Training:
    """A run of two ranks on two workers, which end when the file `end` appears."""

    def __init__(self, job, store: Store, folder: Path, *command: str) -> None:
        self.job, self.folder = job, folder
        self.checkpoints = store.below("checkpoints")
        self.port = free_ports(1)[0]
        job.workers[0].environment["DTJ_PROGRESS_PORT"] = str(self.port)
        self.workers = job.start_workers()
        self.run = job.run(*command)
        self.programs: dict[int, int] = {}
        self.wrappers: dict[int, int] = {}

    def begins(self, number: int, step: int) -> None:
        """Wait until both ranks of a round have begun at a step."""

        def begun() -> list[tuple[str, ...]]:
            found = BEGINS.findall(self.run.output)
            return found[2 * number :] if len(found) == 2 * number + 2 else []

        found = until(begun, f"round {number} begins", 60, self.told)
        assert {(rank, at) for rank, at, _, _ in found} == {("0", str(step)), ("1", str(step))}, self.told()
        self.programs = {int(rank): int(pid) for rank, _, pid, _ in found}
        self.wrappers = {int(rank): int(pid) for rank, _, _, pid in found}

    def save(self, step: int) -> None:
        """Let rank 0 save, and wait until the bucket has the checkpoint."""
        (self.folder / "save").touch()
        until(lambda: f"{step}.pt" in self.kept(), f"step {step} is kept", tell=self.told)

    def kept(self) -> set[str]:
        manifests = read_index(self.checkpoints).manifests.values()
        return {file.path for manifest in manifests for file in manifest.files}

    @property
    def restarts(self) -> dict:
        """What rank 0's pod reports of restarts in place."""
        return get_json(f"http://127.0.0.1:{self.port}/progress").get("restarts", {})

    def ends(self, code: int = 0) -> dict:
        (self.folder / "end").touch()
        assert self.run.ended() == code, self.told()
        return self.job.launcher.termination

    def told(self) -> str:
        return "\n".join([self.run.output, *(worker.output for worker in self.workers)])


def process_below(launched: Launched, words: str) -> int:
    """The process below `dtj-launch` whose command line begins with these words."""
    for pid in descendants(launched.process.pid):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if re.match(words, command):
            return pid
    pytest.fail(f"nothing runs {words!r}")


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def gone(*pids: int) -> bool:
    return not any(map(runs, pids))


@pytest.fixture
def start(make_job, tmp_path, job_uri, job_store):  # noqa: F811
    """Starts a job whose pods hold rounds."""

    def start(ranks_by: str, *command: str, **environment: str) -> Training:
        job = make_job(DTJ_RANKS_BY=ranks_by, DTJ_ARTIFACTS_URI=job_uri, **{**barrier(), **environment})
        words = command or (sys.executable, "-c", PROGRAM % tmp_path)
        return Training(job, job_store, tmp_path, *words)

    return start


@pytest.mark.parametrize("ranks_by", STARTERS)
def test_a_killed_rank_starts_again_with_the_others_from_one_checkpoint(start, ranks_by):
    training = start(ranks_by)
    training.begins(0, step=0)
    training.save(1)
    earlier = [*training.programs.values(), *training.wrappers.values()]
    kill(training.programs[1])
    training.begins(1, step=1)
    assert gone(*earlier)
    told = training.restarts
    assert (told["count"], told["failure"]["rank"], told["failure"]["class"]) == (1, 1, "Signal")
    assert "dtj: round 1 begins, after the failure of worker-1" in training.run.output
    training.save(2)

    message = training.ends()
    assert "class" not in message
    assert message["restarts"]["count"] == 1
    assert message["restarts"]["failure"]["message"] == told["failure"]["message"]
    assert "lastLogLines" not in message["restarts"]["failure"]
    stop(training.workers)


@needs_mpirun
def test_whatever_is_killed_the_ranks_start_again_until_no_newer_checkpoint_was_taken(start):
    training = start("mpi")
    victims = {
        "rank 0": lambda: [training.programs[0]],
        "the wrapper of rank 1": lambda: [training.wrappers[1]],
        "mpirun": lambda: [process_below(training.run, "mpirun ")],
        "both ranks": lambda: list(training.programs.values()),
    }
    for number, victim in enumerate(victims.values()):
        training.begins(number, step=number)
        training.save(number + 1)
        kill(*victim())
    training.begins(4, step=4)
    kill(training.programs[1])

    # Do not create the file `end`: rank 0 might find it and succeed before the failure of rank 1 ends the round.
    assert training.run.ended() == 137, training.told()
    message = training.job.launcher.termination
    assert (message["class"], message["rank"], message["restarts"]["count"]) == ("Signal", 1, 4)
    assert "no new checkpoint was taken since the last restart in place" in training.run.output
    stop(training.workers)


@needs_mpirun
def test_a_blocked_port_leaves_everything_as_without_rounds(start):
    with socket.create_server(("127.0.0.1", 0)) as other:
        training = start("mpi", DTJ_START_BARRIER=f"127.0.0.1:{other.getsockname()[1]}")
        training.begins(0, step=0)
        training.save(1)
        kill(training.programs[1])
        message = training.ends(137)
    assert (message["class"], message["rank"]) == ("Signal", 1)
    assert "restarts" not in message
    stop(training.workers)


@needs_ssh
def test_over_ssh_ranks_and_orted_are_ended_and_sshd_stays(make_ssh_job, tmp_path, job_uri, job_store):  # noqa: F811
    training = Training(
        make_ssh_job(DTJ_ARTIFACTS_URI=job_uri, **barrier()), job_store, tmp_path, PROGRAM % tmp_path
    )
    training.begins(0, step=0)
    training.save(1)
    servers = [process_below(worker, ".*sshd -De ") for worker in training.workers]
    orted = [process_below(worker, "(/usr/bin/)?orted ") for worker in training.workers]
    kill(training.programs[1])
    training.begins(1, step=1)
    assert gone(*orted)
    assert not gone(*servers)
    training.save(2)
    kill(process_below(training.workers[1], "(/usr/bin/)?orted "))
    training.begins(2, step=2)
    kill(servers[1])

    message = training.ends(training.run.ended())
    assert message["class"] == "ConnectionLost"
    assert message["restarts"]["count"] == 2
    assert training.workers[1].ended() == 78


BARE = """
import os, pathlib, time, horovod.torch as hvd, torch
hvd.init()
signals, folder = pathlib.Path("%s"), pathlib.Path("/dtj/checkpoints")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
step = max((int(path.stem) for path in folder.glob("*.pt")), default=0)
if step:
    model.load_state_dict(torch.load(folder / f"{step}.pt"))
print("begins at", step, "as", os.getpid(), os.getppid(), flush=True)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
while not hvd.allreduce(torch.tensor(float((signals / "end").exists())), op=hvd.Sum):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if hvd.rank() == 0 and (signals / "save").exists():
        (signals / "save").unlink()
        step += 1
        torch.save(model.state_dict(), folder / "new")
        (folder / "new").rename(folder / f"{step}.pt")
    time.sleep(0.02)
"""
"""A script that knows nothing of dtj but the folder of the checkpoints."""


@pytest.mark.torch
@needs_mpirun
def test_a_bare_script_with_horovod(start, tmp_path):
    training = start("mpi", sys.executable, "-c", BARE % tmp_path)
    training.begins(0, step=0)
    training.save(1)
    kill(training.programs[1])
    training.begins(1, step=1)
    assert "restarts" in training.ends()
    stop(training.workers)
