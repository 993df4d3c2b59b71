"""Ranks that are restarted in living pods: real agents on loopback, and programs that know nothing of dtj.

* a rank of PyTorch that is killed; rank 0, two at once, one of several in a pod, the only pod
* failures after which no round follows, and signals at every moment
* the coordinator's agent, an agent without rounds
* what a round finds: environment, files, processes, limits

`test_rounds` has the messages and the decision, `test_round_machines` what holds in every order of events.
"""

from __future__ import annotations

import mmap
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests import warm
from tests.trainer.conftest import Launched, Workspace, descendants, until
from tests.trainer.torch_pods import torch_pods

from dtj_trainer import contract
from dtj_trainer.launch import leftovers
from dtj_trainer.launch.leftovers import Leftovers, TemporaryFiles
from dtj_trainer.launch.pod_rounds import free_port, round_variables
from dtj_trainer.launch.round_messages import Go
from dtj_trainer.launch.settings import read_settings

ROUNDS = contract.Rounds(before=0, limit=6)

RANK = """
import os, pathlib, signal, socket, subprocess, sys, time
rank, world, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
shared = pathlib.Path(sys.argv[1])
options = sys.argv[2:]
if "stubborn" in options:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "saves" in options:
    def save(*_):
        print("saved", flush=True)
        os._exit(143)
    signal.signal(signal.SIGTERM, save)
if "daemon" in options and rank == 1:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
print(f"start {restart}: rank {rank} of {world} is {os.getpid()} on {port}", flush=True)
mine = shared / f"{rank}"
while not (shared / "finish").exists() and not (mine.with_suffix(".finish")).exists():
    if mine.with_suffix(".full").exists():
        sys.exit("OSError: [Errno 28] No space left on device")
    time.sleep(0.02)
"""
"""A rank that runs until a file tells it to end. It says its process."""

AS_TORCHRUN = """
import os, subprocess, sys
rank = [sys.executable, "-c", *sys.argv[1:]]
sys.exit(bool(subprocess.call(rank, start_new_session=True, env={**os.environ, "LOCAL_RANK": "0"})))
"""
"""A command that starts the rank of a pod, in a session of its own."""


class Job:
    """The pods of a job, each with its agent."""

    def __init__(self, pods: list[Workspace], shared: Path, slots: int) -> None:
        self.pods, self.shared, self.slots = pods, shared, slots
        self.runs: list[Launched] = []
        self.by_command = False
        shared.mkdir()

    def start(self, *options: str) -> None:
        rank = (RANK, str(self.shared), *options)
        kind, words = ("replica", (AS_TORCHRUN, *rank)) if self.by_command else ("ranks", rank)
        self.runs = [pod.launch(kind, sys.executable, "-c", *words) for pod in self.pods]

    def pids(self, start: int = 0) -> list[int]:
        """The processes of all ranks, when they have started so often again."""
        said = re.compile(rf"start {start}: rank (\d+) of \d+ is (\d+)")

        def all_say() -> list[int]:
            found = {int(rank): int(pid) for run in self.runs for rank, pid in said.findall(run.output)}
            return (
                [found[rank] for rank in sorted(found)] if len(found) == self.slots * len(self.pods) else []
            )

        pids: list[int] = until(all_say, f"all ranks have started {start} times again", tell=self.tell)
        return pids

    def tell(self) -> str:
        return "\n".join(run.output for run in self.runs)

    def finish(self) -> list[int]:
        (self.shared / "finish").touch()
        return [run.ended() for run in self.runs]

    def joined(self) -> Job:
        """Wait until a failure is followed by a round."""
        for run in self.runs:
            run.says("a failure is followed by a restart in place")
        return self


@pytest.fixture
def job(make_workspace: Callable[..., Workspace], tmp_path: Path) -> Callable[..., Job]:
    def make(count: int = 2, *options: str, slots: int = 1, by_command: bool = False, **more: str) -> Job:
        more = {"TORCHELASTIC_RESTART_COUNT": "0", **more}
        pods = torch_pods(make_workspace, count, slots, by_command=by_command, rounds=ROUNDS, **more)
        made = Job(pods, tmp_path / "shared", slots)
        made.by_command = by_command
        made.start(*options)
        return made.joined()

    return make


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


# --- a real training ---------------------------------------------------------------------------

TRAINING = """
import os, time
from pathlib import Path
import torch
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
folder = Path("/dtj/checkpoints")
saved = sorted(folder.glob("step-*.pt"), key=lambda path: int(path.stem[5:]))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
first = 0
if saved:
    state = torch.load(saved[-1])
    model.load_state_dict(state["model"])
    first = state["step"]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print(f"begins at {first} with process {os.getpid()}", flush=True)
for step in range(first + 1, 41):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if rank == 0 and step % 5 == 0:
        torch.save({"model": model.state_dict(), "step": step}, folder / "new")
        (folder / "new").rename(folder / f"step-{step}.pt")
    print("step", step, flush=True)
    time.sleep(0.05)
torch.distributed.destroy_process_group()
"""


@pytest.mark.torch
def test_a_killed_rank_trains_again_in_living_pods(make_workspace, tmp_path):
    """A bare script with DistributedDataParallel. Both agents live on, and no bucket has a checkpoint."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    pods = torch_pods(make_workspace, 2, rounds=ROUNDS)
    runs = [pod.launch("ranks", warm.python("torch"), str(script)) for pod in pods]
    runs[1].says("step 12\n")
    kill(int(runs[1].output.split("with process ")[1].split()[0]))

    assert [run.ended() for run in runs] == [0, 0], runs[0].output + runs[1].output

    assert [re.findall(r"begins at (\d+)", run.output) for run in runs] == [["0", "10"]] * 2
    assert [run.output.count("step 40\n") for run in runs] == [1, 1]
    restarts = pods[0].termination["restarts"]
    assert restarts["count"] == 1
    assert (restarts["failure"]["class"], restarts["failure"]["rank"]) == ("Signal", 1)
    assert "restarts" not in pods[1].termination
    for rank, pod in enumerate(pods):
        before, after = pod.log(f"rank-{rank}.log").split(
            "dtj: round 1 begins, after the failure of worker-1: the program was killed by SIGKILL\n"
        )
        assert "step 10\n" in before
        assert "step 40\n" in after


# --- who fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("killed", "count", "slots"), [([0], 2, 1), ([0, 1], 2, 1), ([3], 2, 2), ([1], 1, 2)]
)
def test_all_ranks_start_again_in_the_same_agents(job, killed, count, slots):
    running = job(count, "stubborn", slots=slots)
    before = running.pids()
    for rank in killed:
        kill(before[rank])
    after = running.pids(1)

    assert not set(before) & set(after)
    assert not [pid for pid in before if Path("/proc", str(pid)).exists()]
    assert running.finish() == [0] * count

    report = running.pods[0].termination
    assert report["restarts"]["count"] == 1
    assert report["restarts"]["failure"]["rank"] in killed
    assert "class" not in report
    ports = set(re.findall(r"start 1: .* on (\d+)", running.tell()))
    assert len(ports) == 1, "all ranks have the port of the round"
    assert ports != set(re.findall(r"start 0: .* on (\d+)", running.tell()))


def test_a_command_starts_the_ranks_again(job):
    """The ranks of torchrun are in sessions of their own."""
    running = job(2, "stubborn", by_command=True)
    before = running.pids()
    kill(before[1])
    running.pids(1)

    assert not [pid for pid in before if Path("/proc", str(pid)).exists()]
    assert running.finish() == [0, 0]
    assert running.pods[0].termination["restarts"]["count"] == 1


def test_a_second_failure_without_a_newer_checkpoint_ends_the_pods(job):
    running = job()
    kill(running.pids()[1])
    kill(running.pids(1)[1])

    assert [run.ended() for run in running.runs] == [contract.EXIT_UNAVAILABLE, 137]

    other, faulty = (pod.termination for pod in running.pods)
    assert (faulty["class"], faulty["signal"]) == ("Signal", 9)
    assert other["class"] == "ConnectionLost"
    assert other["message"].endswith("no new checkpoint was taken since the last restart in place")
    assert other["restarts"]["count"] == 1


def test_no_round_follows_a_full_disk(job):
    running = job()
    running.pids()
    (running.shared / "1.full").touch()

    assert [run.ended() for run in running.runs] == [contract.EXIT_UNAVAILABLE, 1]

    assert running.pods[1].termination["class"] == "DiskFull"
    assert running.pods[0].termination["message"].endswith("worker-1 would fail again: DiskFull")


def test_a_rank_that_ends_early_ends_no_other(job):
    running = job()
    running.pids()
    (running.shared / "0.finish").touch()
    assert running.runs[0].ended() == 0

    assert running.finish() == [0, 0]
    assert len(re.findall(r"start \d", running.tell())) == 2


# --- signals, agents ---------------------------------------------------------------------------


def test_a_drain_lets_all_ranks_save(job):
    running = job(2, "saves")
    pids = running.pids()
    running.runs[0].terminate()
    assert running.runs[0].ended() == 143
    os.kill(pids[1], signal.SIGTERM)  # As ranks agree among themselves.

    assert running.runs[1].ended() == 143
    assert [run.output.count("saved") for run in running.runs] == [1, 1]
    report = running.pods[0].termination
    assert (report["class"], report["signal"]) == ("Signal", signal.SIGTERM)
    assert len(re.findall(r"start \d", running.tell())) == 2


def test_a_signal_between_two_rounds_ends_the_pod(job):
    """Agent 2 is stopped, so that no pod gets beyond `ready`."""
    running = job(3)
    pids = running.pids()
    os.kill(running.runs[2].process.pid, signal.SIGSTOP)
    kill(pids[1])
    until(lambda: not Path("/proc", str(pids[0])).exists(), "rank 0 was ended")
    running.runs[0].terminate()

    assert running.runs[0].ended() == 143
    assert running.pods[0].termination["message"] == (
        "the pod was told to stop (SIGTERM) while its ranks were restarted in place"
    )
    assert running.runs[1].ended() == 137
    os.kill(running.runs[2].process.pid, signal.SIGCONT)
    assert running.runs[2].ended() == contract.EXIT_UNAVAILABLE


def test_agents_whose_coordinator_has_died_end(job):
    running = job(2, DTJ_PEER_TIMEOUT_SECONDS="2")
    pids = running.pids()
    kill(running.runs[0].process.pid)

    assert running.runs[1].ended() == contract.EXIT_UNAVAILABLE
    report = running.pods[1].termination
    assert report["class"] == "ConnectionLost"
    assert report["message"].endswith("the pod had no answer of the coordinator for 2 s")
    assert not [pid for pid in pids if Path("/proc", str(pid)).exists()]


def test_an_agent_without_rounds_leaves_the_job_without_rounds(make_workspace, tmp_path):
    pods = torch_pods(make_workspace, 2, rounds=ROUNDS)
    pods[1].environment[contract.ENV_POD] = contract.PodInfo(role="worker", index=1, slots=1).to_json()
    running = Job(pods, tmp_path / "shared", 1)
    running.start()
    pids = running.pids()
    kill(pids[0])

    assert running.runs[0].ended() == 137
    assert running.pods[0].termination["class"] == "Signal"
    (running.shared / "finish").touch()
    assert running.runs[1].ended() == 0


# --- what a round finds ------------------------------------------------------------------------


def test_a_process_in_a_session_of_its_own_does_not_see_the_next_round(job):
    running = job(2, "daemon")
    pids = running.pids()
    (daemon,) = (pid for pid in descendants(running.runs[1].process.pid) if _command(pid)[0] == "sleep")
    kill(pids[0])
    running.pids(1)

    assert not Path("/proc", str(daemon)).exists()
    assert running.finish() == [0, 0]


def _command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def test_programs_have_the_limits_of_the_container(make_workspace, tmp_path):
    """The coordinator's server raises the number of files that its own process may open."""
    soft = sum(1 for _ in Path("/proc/self/fd").iterdir()) + 100
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    (pod,) = torch_pods(make_workspace, 1, rounds=ROUNDS)
    ask = "import resource; print('limit', resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        run = pod.launch("ranks", sys.executable, "-c", ask, DTJ_WORLD_SIZE="1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert run.ended() == 0
    assert f"limit {soft}\n" in run.output


def test_the_variables_of_a_round():
    environment = {
        "MASTER_PORT": "29501",
        "PET_RDZV_ENDPOINT": "[::1]:29501",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "HOME": "/",
    }
    assert round_variables(environment, Go(3, 30000)) == {
        "MASTER_PORT": "30000",
        "PET_RDZV_ENDPOINT": "[::1]:30000",
        "TORCHELASTIC_RESTART_COUNT": "5",
    }


def test_references_to_what_a_round_changes_are_expanded(make_workspace):
    (pod,) = torch_pods(make_workspace, 1, rounds=ROUNDS)
    says = "import sys; print(sys.argv[1:])"
    run = pod.launch("ranks", sys.executable, "-c", says, "$(MASTER_PORT)", "$(HOME)")

    assert run.ended() == 0
    assert str([pod.environment["MASTER_PORT"], "$(HOME)"]) in run.output


def test_a_port_that_another_process_listens_on_is_passed_over():
    port = free_port(29500)
    with socket.create_server(("127.0.0.1", port)):
        assert free_port(port) != port


def test_files_from_before_the_first_start_stay(tmp_path):
    (tmp_path / "image").mkdir()
    files = TemporaryFiles([tmp_path], shared=False)
    (tmp_path / "image" / "new").touch()
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "image")
    files.remove()

    assert [path.name for path in tmp_path.rglob("*")] == ["image", "new"]


def test_in_shared_folders_only_the_memory_of_the_own_processes_goes(tmp_path):
    (tmp_path / "earlier").write_bytes(b"x" * 10)
    files = TemporaryFiles([tmp_path], shared=True)
    for name in ("another", "own"):
        (tmp_path / name).write_bytes(b"x" * 10)
    with ExitStack() as opened:
        for name in ("earlier", "own"):
            file = opened.enter_context((tmp_path / name).open("r+b"))
            opened.enter_context(mmap.mmap(file.fileno(), 0))
        files.note([os.getpid()])
    files.remove()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "earlier"]


def test_memory_of_a_gpu_that_stays_in_use_is_a_reason_to_leave(monkeypatch, tmp_path):
    monkeypatch.setattr(leftovers, "GPU_SECONDS", 0.5)
    pod = contract.PodInfo(role="worker", index=0, slots=1)
    settings = read_settings({contract.ENV_POD: pod.to_json(), contract.ENV_ROOT: str(tmp_path)})
    used = {"0": 10**9, "1": 0}
    left = Leftovers(settings, lambda: dict(used))

    assert left.remove(lambda: False) == ""
    used["1"] = 2 * leftovers.GPU_BYTES
    assert left.remove(lambda: False) == "has memory of GPU 1 in use 0.5 s after the end of its programs"
    assert left.remove(lambda: True) == "", "a pod that was told to end waits for nothing"


COUNTS = """
import os, pathlib, signal, subprocess, time
restart, agent = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), pathlib.Path("/proc", str(os.getppid()))
folder = pathlib.Path("/dtj/checkpoints")
names = sorted(path.name for path in folder.iterdir())
status = dict(line.split(":", 1) for line in (agent / "status").read_text().splitlines())
children = sum(len((task / "children").read_text().split()) for task in (agent / "task").iterdir())
counts = len(os.listdir(agent / "fd")), status["Threads"].strip(), status["VmRSS"].split()[0], children
print("start", restart, "has", *counts, *names, flush=True)
if restart < ROUNDS:
    if restart == 1:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    (folder / "new").write_text(f"step {restart}")
    (folder / "new").rename(folder / f"step-{restart}")
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_agent_holds_nothing_of_earlier_rounds(make_workspace):
    count = 20
    rounds = contract.Rounds(0, count)
    settled = {"DTJ_CHECKPOINT_SETTLE_SECONDS": "0.1", "TORCHELASTIC_RESTART_COUNT": "0"}
    (pod,) = torch_pods(make_workspace, 1, rounds=rounds, **settled)
    run = pod.launch("ranks", sys.executable, "-c", COUNTS.replace("ROUNDS", str(count)))

    assert run.ended() == 0, run.output

    starts = [line.split()[3:] for line in re.findall(r"start \d+ has .*", run.output)]
    assert len(starts) == count + 1
    assert starts[-1][4:] == sorted(f"step-{restart}" for restart in range(count))
    assert pod.termination["restarts"]["count"] == count
    files, threads, memory, children = zip(*(map(int, start[:4]) for start in starts), strict=False)
    assert files[-1] <= files[3] + 2, "threads of the agent may have a file open"
    assert threads[-1] <= threads[3]
    assert children[-1] == children[0] == 1
    assert memory[-1] < memory[3] * 1.1
