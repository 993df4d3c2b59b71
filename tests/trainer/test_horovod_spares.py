"""Warm spares of Horovod's ranks: the worker's agent keeps them, and the wrappers of the ranks of a round take them.

* whole jobs by mpirun over ssh, by mpirun on this machine and by gloo
* one agent and its wrappers: outputs and ends, changes, kills, leftovers, leaks
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Empty

import pytest
from tests.patience import PATIENCE
from tests.trainer.conftest import REPOSITORY, Launched, descendants, until
from tests.trainer.test_horovod_rounds import (
    BARE,
    Training,
    barrier,
    gone,
    kill,
    needs_mpirun,
    needs_ssh,
    process_below,
)
from tests.trainer.test_launch_local import STARTERS, make_job, stop  # noqa: F401 - a fixture
from tests.trainer.test_launch_mpi import make_job as make_ssh_job  # noqa: F401 - a fixture
from tests.trainer.test_spares import Folder, folder, hurried  # noqa: F401 - a fixture

from dtj_trainer.launch.event_queue import EventQueue
from dtj_trainer.launch.processes import adopt_orphans, children_by_parent
from dtj_trainer.launch.spare import Spares
from dtj_trainer.launch.spare_starts import RankStarts, Request
from dtj_trainer.launch.supervisor_socket import ControlServer

# Whole jobs.

AGENT = """
import os
from dtj_trainer.launch import main, pod
pod.Pod.saved_since = lambda self, at_ns: os.path.exists({saved!r})
main.main()
"""
"""An agent to whom a file says that a checkpoint was saved."""
TRAINS = """
import os, pathlib, subprocess, sys, time
import library
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["HOROVOD_RANK"])
checkpoints, signals = pathlib.Path("/dtj/checkpoints"), pathlib.Path(__file__).parent
step = max((int(path.stem) for path in checkpoints.glob("*.pt")), default=0)
assert library.PID == os.getpid()
print("begins at", step, "as", os.getpid(), os.getppid(), flush=True)
while not (signals / "end").exists():
    if rank == 0 and (signals / "save").exists():
        (signals / "save").unlink()
        step += 1
        (checkpoints / "new").write_text(f"state {step}")
        (checkpoints / "new").rename(checkpoints / f"{step}.pt")
    if rank == 1 and (signals / "fail").exists():
        raise ValueError("a fault of rank 1")
    time.sleep(0.02)
"""


class WarmTraining(Training):
    """A training whose agents keep spares."""

    def spares(self, number: int) -> None:
        """Wait until both agents have had `number` spares."""
        (self.folder / "saved").touch()
        for rank, worker in enumerate(self.workers):
            says = f"rank {rank} has a warm spare of"
            until(lambda w=worker, s=says: w.output.count(s) == number, says, 60, self.told)

    def by_spares(self, number: int) -> None:
        """Assert that each rank has started by its spare so many times."""
        for rank, worker in enumerate(self.workers):
            assert worker.output.count(f"rank {rank} starts by its warm spare") == number, self.told()


@pytest.fixture
def start(request, tmp_path, folder, job_uri, job_store):  # noqa: F811
    """Starts a script on two workers, by mpirun over ssh or by a starter on this machine."""
    (tmp_path / "pods").mkdir()

    def start(ranks_by: str, script: str) -> WarmTraining:
        environment = {
            "DTJ_ARTIFACTS_URI": job_uri,
            "PYTHONPATH": f"{REPOSITORY / 'trainer'}:{folder.installed}",
            **barrier(),
        }
        if ranks_by == "ssh":
            job = request.getfixturevalue("make_ssh_job")(**environment)
            job.run = lambda *command: job.start(job.launcher, *command)
        else:
            job = request.getfixturevalue("make_job")(DTJ_RANKS_BY=ranks_by, **environment)
        folder.library("import os; PID = os.getpid()")
        agent = folder.write("agent.py", AGENT.format(saved=str(tmp_path / "saved")))
        program = Path(job.launcher.environment["PATH"].split(":")[0]) / "dtj-launch"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {agent} "$@"\n')
        words = [sys.executable, str(folder.write("train.py", script)), "--epochs", "3"]
        return WarmTraining(job, job_store, tmp_path, *words)

    return start


WAYS = [pytest.param("ssh", marks=needs_ssh), *STARTERS]


def agent_of(worker: Launched) -> int:
    return process_below(worker, f".*{sys.executable} .*agent.py worker")


@pytest.mark.parametrize("ranks_by", WAYS)
def test_the_ranks_of_a_round_start_by_spares(start, ranks_by):
    training = start(ranks_by, TRAINS)
    training.begins(0, step=0)
    training.save(1)
    for number in (1, 2):
        training.spares(number)
        earlier = [*training.programs.values()]
        kill(training.programs[number % 2])
        training.begins(number, step=number)
        training.by_spares(number)
        assert gone(*earlier)
        told = training.restarts
        assert (told["count"], told["failure"]["rank"], told["failure"]["class"]) == (
            number,
            number % 2,
            "Signal",
        )
        training.save(number + 1)
    log = training.job.workers[1].log("rank-1.log")
    assert re.findall(r"round \d|begins at \d", log) == [
        *("begins at 0", "round 1", "begins at 1", "round 2", "begins at 2")
    ]
    message = training.ends()
    assert "class" not in message
    stop(training.workers)


def in_round_1(start) -> WarmTraining:
    """A training by mpirun whose ranks have started once by their spares."""
    training = start("mpi", TRAINS)
    training.begins(0, step=0)
    training.save(1)
    training.spares(1)
    kill(training.programs[0])
    training.begins(1, step=1)
    training.by_spares(1)
    return training


@needs_mpirun
def test_a_failure_after_a_start_by_a_spare_is_told_as_any(start):
    training = in_round_1(start)
    (training.folder / "fail").touch()
    assert training.run.ended() == 1, training.told()
    message = training.job.launcher.termination
    assert (message["class"], message["rank"]) == ("ApplicationError", 1)
    assert message["exitCode"] == 1
    assert any("ValueError: a fault of rank 1" in line for line in message["lastLogLines"])
    stop(training.workers)


@needs_mpirun
def test_a_killed_wrapper_takes_the_program_with_it_and_a_killed_agent_all_of_its_own(start):
    training = in_round_1(start)
    training.save(2)
    training.spares(2)
    earlier = [*training.programs.values()]
    wrapper = next(
        pid
        for pid in map(int, (path.name for path in Path("/proc").iterdir() if path.name.isdecimal()))
        if (words := command_line(pid)) and " rank -- " in words and str(training.folder) in words
    )
    kill(wrapper)
    training.begins(2, step=2)
    training.by_spares(2)
    assert gone(*earlier)
    training.save(3)
    training.spares(3)
    agent = agent_of(training.workers[1])
    own = children_by_parent()[agent]
    assert len(own) >= 2
    kill(agent)
    until(lambda: gone(*own), "all of the agent's own processes end")
    assert training.ends(training.run.ended())["class"] in ("ConnectionLost", "Signal")


@pytest.mark.torch
@needs_ssh
def test_a_bare_script_with_horovod(start, tmp_path):
    training = start("ssh", BARE % tmp_path)
    training.begins(0, step=0)
    training.save(1)
    (tmp_path / "saved").touch()

    def ready() -> bool:
        for worker in training.workers:
            for pid in descendants(worker.process.pid):
                if "spare_program.py wait:" in command_line(pid):
                    hurried(pid)
        return all(" has a warm spare of " in worker.output for worker in training.workers)

    until(ready, "both ranks have spares", 100, training.told)
    kill(training.programs[1])
    training.begins(1, step=1)
    training.by_spares(1)
    message = training.ends()
    assert "class" not in message
    assert message["restarts"]["count"] == 1
    stop(training.workers)


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


# One agent, and the wrappers of a rank.

WRAPPER = """
import json, os, sys
from pathlib import Path
from dtj_trainer.launch.program import Program
from dtj_trainer.launch.spare_starts import RankStarter
path, number, *command = sys.argv[1:]
starter = RankStarter(Path(path), 1, int(number))
output = []
program = Program(command, os.environ, output.append, starter=starter)
end = program.start() or program.wait()
starter.end_orphans([])
said = b"".join(output).decode()
print(json.dumps([said[:1000], end.exit_code, end.signal, end.missing, end.oom_killed, program.pid]))
"""
End = tuple[str, int, int | None, str | None, bool, int]


class OneAgent:
    """The starts of rank 1, by wrappers that are processes of their own."""

    def __init__(self, files: Folder) -> None:
        self.folder = files
        self.requests: EventQueue[Request] = EventQueue()
        self.spares = Spares()
        self.starts = RankStarts(self.spares, self.requests.put)
        self.path = files.path / "socket"
        self.server = ControlServer(self.path, None, self.starts)  # type: ignore[arg-type]  # nobody attaches
        self.server.start()
        self.wrappers: list[subprocess.Popen[bytes]] = []
        self.late = False
        self.binds = ""
        """What wrappers do first."""

    def wrapper(self, *command: str, number: int = 1, **variables: str) -> subprocess.Popen[bytes]:
        environment = {
            **self.folder.environment,
            "OMPI_COMM_WORLD_RANK": "1",
            "PMIX_ID": str(number),
            **variables,
        }
        environment["PYTHONPATH"] += f":{REPOSITORY / 'trainer'}"
        words = [sys.executable, "-c", self.binds + WRAPPER, str(self.path), str(number), *command]
        self.wrappers.append(
            subprocess.Popen(words, env=environment, cwd=self.folder.path, stdout=subprocess.PIPE)
        )
        return self.wrappers[-1]

    def serve(self) -> None:
        """Do what the main thread of an agent does."""
        with contextlib.suppress(Empty):
            self.starts.answer(self.requests.get(timeout=0.05), late=self.late)
        self.starts.tend(lambda: True)

    def until(self, holds, what: str):
        return until(lambda: self.serve() or holds(), what, PATIENCE * 10)

    def ended(self, wrapper: subprocess.Popen[bytes]) -> End:
        self.until(lambda: wrapper.poll() is not None, "the wrapper ends")
        return tuple(json.loads(wrapper.stdout.read()))

    @property
    def seat(self):
        return self.spares._seats["rank 1"]

    def spare_ready(self, *flags: str, **variables: str) -> int:
        """Leave a spare of a program that was killed; return its process."""
        (self.folder.path / "holds").unlink(missing_ok=True)
        held = self.wrapper(sys.executable, *flags, "hold.py", **variables)

        def ready() -> bool:
            found = self.spares._seats.get("rank 1")
            return bool(found and found.spare and (hurried(found.spare.process.pid) or found.spare.ready))

        self.until(ready, "a spare is ready")
        held.kill()
        held.wait()
        self.until(lambda: not self.seat.runs(), "the agent knows of the end")
        return self.seat.spare.process.pid

    def close(self) -> None:
        self.starts.close()
        self.server.close()
        for wrapper in self.wrappers:
            wrapper.kill()
            wrapper.wait()


@pytest.fixture
def agent(folder: Folder) -> Iterator[OneAgent]:  # noqa: F811
    one = OneAgent(folder)
    yield one
    one.close()


ENDS = {
    "print('said', len(sys.argv))": ("said 3\n", 0, None),
    "sys.exit(7)": ("", 7, None),
    "os.kill(os.getpid(), 11)": ("", 139, signal.SIGSEGV),
    "os.write(1, b'x' * 300000)": ("x" * 1000, 0, None),
}


@pytest.mark.parametrize("program", ENDS)
def test_outputs_and_ends_are_as_without_a_spare(agent, folder, program):  # noqa: F811
    folder.write("program.py", f"import os, sys, library\n{program}")
    command = (sys.executable, "program.py", "a", "b c")
    said = [agent.ended(agent.wrapper(*command))]
    waiting = agent.spare_ready()
    said.append(agent.ended(agent.wrapper(*command, number=2)))
    assert [each[:3] for each in said] == [ENDS[program]] * 2
    assert said[0][5] != waiting == said[1][5]


@pytest.mark.parametrize(
    ("flags", "variables", "why"),
    [
        (["-O"], {}, "the interpreter of the command, or its flags, changed"),
        ([], {"OTHER": "1"}, "variables of the environment changed: OTHER\n"),
        (
            [],
            {"OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            "variables of the environment changed: OMPI_COMM_WORLD_LOCAL_RANK\n",
        ),
    ],
)
def test_a_rank_that_changes_starts_anew(agent, folder, caplog, flags, variables, why):  # noqa: F811
    caplog.set_level("INFO")
    folder.write("program.py", "import library; print('ran')")
    waiting = agent.spare_ready()
    end = agent.ended(agent.wrapper(sys.executable, *flags, "program.py", **variables))
    assert end[:2] == ("ran\n", 0)
    assert end[5] != waiting
    assert gone(waiting)
    assert f"rank 1 starts without its warm spare: {why}" in caplog.text


BINDS = """
import os, resource
os.sched_setaffinity(0, {%d})
os.umask(0o27)
resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 23))
"""
SAYS = """
import os, resource, library
print(os.sched_getaffinity(0), os.umask(0), resource.getrlimit(resource.RLIMIT_STACK), os.getcwd())
"""


def test_what_a_rank_inherits_is_as_without_a_spare(agent, folder):  # noqa: F811
    folder.write("says.py", SAYS)
    command = (sys.executable, "says.py")
    one = min(os.sched_getaffinity(0))
    agent.binds = BINDS % one
    cold = agent.ended(agent.wrapper(*command))
    waiting = agent.spare_ready()
    warm = agent.ended(agent.wrapper(*command))
    assert warm[5] == waiting
    assert warm[0] == cold[0] == f"{{{one}}} {0o27} {(1 << 20, 1 << 23)} {folder.path}\n"
    waiting = agent.spare_ready()
    agent.binds = ""
    other = agent.ended(agent.wrapper(*command))
    assert other[5] != waiting
    assert other[0] != warm[0]


def test_a_wrapper_that_ends_takes_its_program_with_it(agent, folder):  # noqa: F811
    folder.write("stays.py", "import library, time; open('stays', 'w').close(); time.sleep(10000)")
    waiting = agent.spare_ready()
    wrapper = agent.wrapper(sys.executable, "stays.py")
    agent.until((folder.path / "stays").exists, "the program runs")
    wrapper.kill()
    agent.until(lambda: not Path(f"/proc/{waiting}").exists(), "the program is ended, and reaped")


def test_a_wrapper_that_ends_while_it_asks_leaves_no_program(agent, folder):  # noqa: F811
    folder.write("stays.py", "import library, time; time.sleep(10000)")
    waiting = agent.spare_ready()
    wrapper = agent.wrapper(sys.executable, "stays.py")
    until(lambda: agent.requests._events, "the wrapper asks")
    wrapper.kill()
    agent.serve()

    def waits() -> bool:
        return agent.seat.spare is not None and agent.seat.spare.process.pid == waiting

    agent.until(lambda: gone(waiting) or waits(), "the program has ended, or the spare still waits")
    agent.starts.close()
    agent.until(lambda: gone(waiting), "the spare ends")


def test_a_rank_of_another_round_takes_no_spare(agent, folder):  # noqa: F811
    folder.write("program.py", "import library; print('ran')")
    waiting = agent.spare_ready()
    agent.late = True
    assert agent.ended(agent.wrapper(sys.executable, "program.py"))[5] != waiting
    assert not gone(waiting)


def test_a_closed_agent_answers_without_the_main_thread(agent, folder):  # noqa: F811
    folder.write("program.py", "print('ran')")
    wrapper = agent.wrapper(sys.executable, "program.py")
    until(lambda: agent.requests._events, "the wrapper asks")
    agent.starts.close()
    wrapper.wait(60)
    assert json.loads(wrapper.stdout.read())[:2] == ["ran\n", 0]


def test_a_spare_that_can_not_be_killed_starts_no_second_program(agent, folder, monkeypatch):  # noqa: F811
    monkeypatch.setattr("dtj_trainer.launch.spare.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("dtj_trainer.launch.spare.END_SECONDS", 0.2)
    waiting = agent.spare_ready()
    process = agent.seat.spare.process
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(process, "kill", lambda: None)
    end = agent.ended(agent.wrapper(sys.executable, "hold.py"))
    assert "its warm spare does not end after SIGKILL" in end[3]
    os.kill(waiting, signal.SIGKILL)


def test_an_orphan_of_a_program_ends_with_it(agent, folder):  # noqa: F811
    folder.write(
        "leaves.py",
        "import library, subprocess\n"
        "child = subprocess.Popen(['sleep', '10000'], start_new_session=True, stdout=subprocess.DEVNULL)\n"
        "print(child.pid)",
    )
    libc = __import__("ctypes").CDLL(None)
    handler = signal.getsignal(signal.SIGCHLD)
    adopt_orphans()
    try:
        waiting = agent.spare_ready()
        end = agent.ended(agent.wrapper(sys.executable, "leaves.py"))
        assert end[5] == waiting
        assert gone(int(end[0]))
    finally:
        libc.prctl(36, 0)
        signal.signal(signal.SIGCHLD, handler)


def test_nothing_leaks_over_many_rounds(agent, folder):  # noqa: F811
    def held() -> list[int]:
        """The files, threads and children of the agent."""
        own = [len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task")]
        return [*own, len(children_by_parent().get(os.getpid(), []))]

    first: list[list[int]] = []
    for _ in range(20):
        agent.spare_ready()
        agent.wrappers.pop().stdout.close()
        first = first or [held()]
        agent.until(lambda most=first[0]: held() <= most, "nothing more is left than after the first round")
