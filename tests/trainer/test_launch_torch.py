"""Real ranks of PyTorch on gloo, started by dtj-launch and by torchrun.

* ranks in pods and in one pod compute together
* a rank that is killed, raises, or exits early; a port that is taken
* torchrun in the place of the ranks, and a world that is not the one asked for
* torchrun and others in a program that dtj-launch starts as a rank
"""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest
from tests import warm
from tests.trainer.conftest import descendants, until
from tests.trainer.torch_pods import torch_pods

from dtj_trainer.launch.processes import children_by_parent
from dtj_trainer.launch.world_check import launcher_of, launchers_and_ranks

pytestmark = pytest.mark.torch

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
PROGRAM = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main(faulty, what):
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of {int(total)}", flush=True)
    if what == "trains":
        dist.destroy_process_group()
        return
    if dist.get_rank() == int(faulty):
        if what == "killed":
            os.kill(os.getpid(), 9)
        if what == "raises":
            raise ValueError("bad batch 7")
        dist.destroy_process_group()
        sys.exit(0)
    while True:
        dist.all_reduce(total)

main(sys.argv[1], sys.argv[2])
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.parametrize(("count", "slots"), [(2, 1), (1, 2)])
def test_ranks_train_together(make_workspace, program, count, slots):
    pods = torch_pods(make_workspace, count, slots)
    runs = [pod.launch("ranks", warm.python("torch"), program, "0", "trains") for pod in pods]

    assert [run.ended() for run in runs] == [0] * count, runs[0].output

    logs = [pods[rank // slots].log(f"rank-{rank}.log") for rank in range(2)]
    assert [f"rank {rank} of 2" in log for rank, log in enumerate(logs)] == [True, True]


@pytest.mark.parametrize(
    ("what", "cause", "message"),
    [
        ("killed", "Signal", "the program was killed by SIGKILL"),
        ("raises", "ApplicationError", "ValueError: bad batch 7"),
    ],
)
def test_the_pod_of_a_failed_rank_names_it_and_the_other_pods_only_follow(
    make_workspace, program, what, cause, message
):
    pods = torch_pods(make_workspace, 2)
    runs = [pod.launch("ranks", warm.python("torch"), program, "1", what) for pod in pods]

    assert 0 not in [run.ended() for run in runs]

    follower, faulty = pods[0].termination, pods[1].termination
    assert faulty["class"] == cause
    assert faulty["message"].endswith(message)
    assert faulty["rank"] == 1
    assert follower["class"] == "ConnectionLost", follower
    assert follower["message"].startswith("the connection to another rank was lost: RuntimeError: ")


def test_of_the_ranks_of_one_pod_the_faulty_one_is_named(make_workspace, program):
    (pod,) = torch_pods(make_workspace, 1, 2)
    run = pod.launch("ranks", warm.python("torch"), program, "1", "raises")

    assert run.ended() != 0

    assert pod.termination["class"] == "ApplicationError"
    assert pod.termination["message"].endswith("ValueError: bad batch 7")
    assert pod.termination["rank"] == 1


def test_a_rank_that_exits_early_leaves_followers(make_workspace, program):
    pods = torch_pods(make_workspace, 2)
    runs = [pod.launch("ranks", warm.python("torch"), program, "1", "exits") for pod in pods]

    assert [run.ended() for run in runs] == [1, 0]

    assert pods[0].termination["class"] == "ConnectionLost"
    assert "class" not in pods[1].termination


def test_a_taken_master_port_is_a_failure_of_its_own_class(make_workspace, program):
    (pod,) = torch_pods(make_workspace, 1)
    with socket.create_server(("", int(pod.environment["MASTER_PORT"]))):
        run = pod.launch("ranks", warm.python("torch"), program, "0", "trains")
        assert run.ended() == 1

    assert pod.termination["class"] == "PortInUse"
    assert "EADDRINUSE" in pod.termination["message"]


def test_torchrun_gets_its_place_by_variables(make_workspace, program):
    pods = torch_pods(make_workspace, 2, by_command=True)
    runs = [pod.launch("replica", TORCHRUN, program, "0", "trains") for pod in pods]

    assert [run.ended() for run in runs] == [0, 0], runs[0].output + runs[1].output

    for index, (pod, run) in enumerate(zip(pods, runs, strict=True)):
        assert f"rank {index} of 2" in run.output
        assert f"rank {index} of 2" in pod.log(f"worker-{index}.log")
        assert "peersReady" in pod.termination["phases"]


def test_the_rank_that_fails_under_torchrun_is_named(make_workspace, program):
    (pod,) = torch_pods(make_workspace, 1, 2, by_command=True)

    assert pod.launch("replica", TORCHRUN, program, "1", "killed").ended() == 1

    found = pod.termination
    assert (found["class"], found["rank"], found["signal"]) == ("Signal", 1, 9), found
    assert found["message"] == "the process of rank 1 was killed by SIGKILL"


@pytest.mark.parametrize("flags", ["--standalone --nnodes=1 --nproc-per-node=1", "--standalone"])
def test_pods_that_torchrun_does_not_connect_are_ended_within_seconds(make_workspace, tmp_path, flags):
    """Flags take precedence over PET_*: both pods would train alone and succeed, or each would wait for the other."""
    script = tmp_path / "long.py"
    script.write_text("import time\ntime.sleep(300)\n")
    pods = torch_pods(make_workspace, 2, by_command=True)
    shell = f"set -e; {TORCHRUN} {flags} {script} --own-option; echo done"
    runs = [pod.launch("replica", "bash", "-c", shell) for pod in pods]

    assert [run.ended() for run in runs] == [78, 78]

    for index, pod in enumerate(pods):
        assert pod.termination["class"] == "WorldSizeMismatch"
        assert pod.termination["message"] == (
            f"2 ranks were asked for, and torchrun on worker-{index} connects to no other pod: remove --standalone"
        )
    assert not running(str(script))


def test_a_world_of_the_pods_own_is_ended_within_seconds(make_workspace, tmp_path):
    script = tmp_path / "long.py"
    script.write_text("import time\ntime.sleep(300)\n")
    (pod,) = torch_pods(make_workspace, 1, by_command=True, DTJ_WORLD_SIZE="2", PET_NNODES="2")

    assert pod.launch("replica", TORCHRUN, "--nnodes=1", str(script), "--standalone").ended() == 78

    assert pod.termination["class"] == "WorldSizeMismatch"
    assert pod.termination["message"] == (
        "2 ranks were asked for, and the command started 1 on worker-0: a flag such as --nnodes takes precedence "
        "over the variables PET_*; remove the flag"
    )


def running(word: str) -> list[str]:
    """The command lines with this word, but for this process's own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and int(path.parent.name) != os.getpid():
            found.append(line)
    return found


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        ("/usr/bin/torchrun --standalone train.py --standalone", ("torchrun", ["--standalone"])),
        ("python -u -m torch.distributed.run --nnodes 2 x.py", ("torch.distributed.run", ["--nnodes", "2"])),
        ("python3 -X dev -W error /usr/local/bin/torchrun -m train", ("torchrun", ["-m", "train"])),
        ("/opt/python3.12 -um deepspeed.launcher.launch train.py", ("deepspeed.launcher.launch", [])),
        ("python /usr/bin/accelerate launch train.py", ("accelerate", ["launch"])),
        ("bash torchrun", None),
        ("python train.py torchrun --standalone", None),
        ("python -m train torchrun", None),
        ("python -m", None),
        ("python -X", None),
        ("", None),
    ],
)
def test_the_launcher_in_a_command_line(line, launcher):
    assert launcher_of(line.split()) == launcher


STARTS_RANKS = """
import os, subprocess, sys, time
# As torchrun does: the ranks have LOCAL_RANK, and the process that starts them has not.
for rank in sys.argv[1].split(","):
    environment = {**os.environ, "RANK": rank, "LOCAL_RANK": "0"}
    subprocess.Popen([sys.executable, "-c", sys.argv[2]], env=environment)
    print("started", rank, flush=True)
time.sleep(300)
"""
STARTS_A_WORLD_OF_ITS_OWN = (
    "import os, subprocess, sys, time\n"
    "own = {**os.environ, 'WORLD_SIZE': '1'}\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], env=own)\n"
    "time.sleep(300)"
)


def test_a_rank_of_another_pod_is_refused(make_workspace):
    (pod,) = torch_pods(make_workspace, 1, by_command=True, DTJ_WORLD_SIZE="2", WORLD_SIZE="2", DTJ_INDEX="1")
    run = pod.launch("replica", sys.executable, "-c", STARTS_RANKS, "0", "import time; time.sleep(300)")

    assert run.ended() == 78

    assert pod.termination["class"] == "WorldSizeMismatch"
    assert pod.termination["message"].startswith(
        "worker-1 was to run rank 1 of 2, and the command started rank 0 there: a flag such as --node-rank takes"
    )


def test_worlds_that_a_rank_starts_itself_are_its_own_matter(make_workspace):
    (pod,) = torch_pods(make_workspace, 1, 2, by_command=True)
    run = pod.launch("replica", sys.executable, "-c", STARTS_RANKS, "0,1", STARTS_A_WORLD_OF_ITS_OWN)
    run.says("this pod runs the ranks that the job asks for")
    run.terminate()

    assert run.ended() == 143
    assert pod.termination["class"] == "Signal"


SCRIPT_CALLS_TORCHRUN = ("bash", "-c", 'cd /; torchrun "$@"; code=$?; echo after; exit $code', "train.sh")
SET_COMMAND = ". For a program that starts the ranks of a worker, set torch.startedBy: Command"


@pytest.fixture
def with_torchrun(monkeypatch):
    """A PATH with torchrun, as in an image."""
    monkeypatch.setenv("PATH", f"{Path(TORCHRUN).parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("with_torchrun")
def test_a_script_that_calls_torchrun_joins_the_ranks_of_the_job(make_workspace, program):
    pods = torch_pods(make_workspace, 2)
    runs = [pod.launch("ranks", *SCRIPT_CALLS_TORCHRUN, program, "0", "trains") for pod in pods]

    assert [run.ended() for run in runs] == [0, 0], runs[0].output + runs[1].output

    for rank, pod in enumerate(pods):
        assert f"rank {rank} of 2" in pod.log(f"rank-{rank}.log")


@pytest.mark.usefixtures("with_torchrun")
def test_a_script_that_calls_torchrun_is_refused_as_one_of_several_ranks(make_workspace, tmp_path):
    script = tmp_path / "long.py"
    script.write_text("import time\ntime.sleep(300)\n")
    pods = torch_pods(make_workspace, 2, 2)
    runs = [pod.launch("ranks", *SCRIPT_CALLS_TORCHRUN, str(script)) for pod in pods]

    assert [run.ended() for run in runs] == [78, 78]

    for index, pod in enumerate(pods):
        assert pod.termination["class"] == "WorldSizeMismatch"
        found = re.fullmatch(
            rf"dtj-launch starts the 2 ranks of worker-{index}, and the program of rank (\d) calls torchrun, which "
            "starts others: set torch.startedBy: Command",
            pod.termination["message"],
        )
        assert found, pod.termination
        assert int(found[1]) // 2 == index


@pytest.mark.usefixtures("with_torchrun")
def test_flags_of_torchrun_in_a_script_take_precedence_and_are_named(make_workspace, tmp_path):
    script = tmp_path / "long.py"
    script.write_text("import time\ntime.sleep(300)\n")
    (pod,) = torch_pods(make_workspace, 1, DTJ_WORLD_SIZE="2", PET_NNODES="2")

    assert pod.launch("ranks", *SCRIPT_CALLS_TORCHRUN, "--nnodes=1", str(script)).ended() == 78

    assert pod.termination["class"] == "WorldSizeMismatch"
    assert pod.termination["message"] == (
        "2 ranks were asked for, and the command started 1 on worker-0: a flag such as --nnodes takes precedence "
        f"over the variables PET_*; remove the flag{SET_COMMAND}"
    )


LAUNCHER = """
import os, subprocess, sys
# Each argument is a variable of the child.
own = dict(word.split("=") for word in sys.argv[1:])
sleeps = [sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(300)"]
subprocess.run(sleeps, env={**os.environ, **own})
"""


@pytest.fixture
def deepspeed(tmp_path):
    """A program with the name of a launcher."""
    path = tmp_path / "deepspeed"
    path.write_text(LAUNCHER)
    return str(path)


def in_rank(rank: int, command: list[str]) -> str:
    """A program that runs a command in one rank, and sleeps in the others."""
    runs = f"if os.environ['RANK'] == '{rank}': subprocess.run({command})"
    return f"import os, subprocess, time\n{runs}\ntime.sleep(300)"


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("WORLD_SIZE=1", "4 ranks were asked for, and the command started 1 on worker-1: a flag such as "),
        ("RANK=3", "worker-1 was to run rank 2 of 4, and the command started rank 3 there: a flag such as "),
    ],
)
def test_another_rank_below_the_launcher_of_a_rank_is_refused(make_workspace, deepspeed, variable, message):
    (pod,) = torch_pods(make_workspace, 1, 2, DTJ_WORLD_SIZE="4", DTJ_INDEX="1", WORLD_SIZE="4")
    run = pod.launch("ranks", sys.executable, "-c", in_rank(2, [sys.executable, deepspeed, variable]))

    assert run.ended() == 78, run.output

    assert pod.termination["message"].startswith(message)
    assert pod.termination["message"].endswith(SET_COMMAND)


SPAWNS = """
import multiprocessing, os, subprocess, sys, time
def child(name, value):
    os.environ[name] = value
    print("spawned", flush=True)
    time.sleep(300)
if __name__ == "__main__":
    # Data loaders, torch.multiprocessing.spawn, and helpers of a program are no ranks of a launcher.
    os.environ["WORLD_SIZE"] = "7"
    multiprocessing.get_context("spawn").Process(target=child, args=("RANK", "9")).start()
    multiprocessing.get_context("fork").Process(target=child, args=("RANK", "9")).start()
    helper = [sys.executable, "-c", "import time; print('spawned', flush=True); time.sleep(300)", "torchrun"]
    subprocess.Popen(helper, env={**os.environ, "WORLD_SIZE": "1", "RANK": "0"})
    # A training of its own, on purpose: its launcher does not get the rank.
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
    subprocess.Popen([sys.executable, sys.argv[1], "LOCAL_RANK=0", "RANK=0", "WORLD_SIZE=1"], env=own)
    time.sleep(300)
"""


def test_other_processes_of_a_rank_are_its_own_matter(make_workspace, tmp_path, deepspeed):
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    (pod,) = torch_pods(make_workspace, 1, DTJ_WORLD_SIZE="2", WORLD_SIZE="2")
    run = pod.launch("ranks", sys.executable, str(script), deepspeed)
    until(lambda: (run.output.count("spawned"), run.output.count("runs")) == (3, 1), "all processes run")
    program = descendants(run.process.pid)[1]
    ranks = list(launchers_and_ranks(program, children_by_parent(), 0))
    run.terminate()

    assert ranks == []
    assert run.ended() == 143
    assert pod.termination["class"] == "Signal"


SAVES = """
import os, signal, sys, time
def save(*_):
    time.sleep(1)
    os.write(1, b"saved %s\\n" % os.environb[b"RANK"])  # At once: the ranks share a pipe, and Python buffers nothing.
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def test_ranks_of_torchrun_save_after_sigterm(make_workspace, tmp_path):
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    (pod,) = torch_pods(make_workspace, 1, 2, by_command=True)
    run = pod.launch("replica", TORCHRUN, str(script))
    until(lambda: run.output.count("ready") == 2, "both ranks run", tell=lambda: run.output)
    run.terminate()

    assert run.ended() == 143, run.output

    assert {f"saved {rank}" in run.output for rank in range(2)} == {True}, run.output
    found = pod.termination
    assert (found["class"], found["signal"], found["exitCode"]) == ("Signal", 15, 143)
