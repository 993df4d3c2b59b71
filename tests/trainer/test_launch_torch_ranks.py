"""The ranks of a PyTorch job under `dtj-launch ranks`, without PyTorch.

* what each rank gets: variables, arguments, a log
* a rank that fails, exits early, or fails because of another
* a pod that is told to stop, is superseded, or can't restore
* uploads, progress and stacks
* pods that start together
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request

import pytest
from tests.trainer.conftest import descendants, free_ports, keys, until
from tests.trainer.torch_pods import torch_pods

from dtj_trainer.launch.processes import command_of, environment_of

SLEEP = "import time; time.sleep(300)"
CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[10.0.0.7]:59117. This is typically caused by a remote worker crashing."
)
LOSES_CONNECTION = f"print({CLOSED!r}); raise SystemExit(1)"


def by_rank(**programs: str) -> str:
    """A program that does what is said for its rank: rank0=…, rank1=…"""
    return f"import os, sys, time, signal\nexec({programs!r}['rank' + os.environ['RANK']])"


def test_each_rank_has_its_own_variables_arguments_and_log(make_workspace):
    pods = torch_pods(make_workspace, 2, 2, DTJ_ATTEMPT="1")
    names = ("RANK", "LOCAL_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_PORT")
    program = (
        "import json, os, sys\n"
        f"print(json.dumps([[os.environ[n] for n in {names}], sys.argv[1:], os.environ['TORCHELASTIC_ERROR_FILE']]))"
    )
    arguments = ("--rank=$(RANK)", "$(LOCAL_RANK):$(ROLE_RANK)", "$(date) $(WORLD_SIZE)")
    runs = [pod.launch("ranks", sys.executable, "-c", program, *arguments) for pod in pods]

    assert [run.ended() for run in runs] == [0, 0], runs[0].output

    for rank in range(4):
        pod, local = pods[rank // 2], rank % 2
        printed, argv, error_file = json.loads(pod.log(f"rank-{rank}.log"))
        master = pod.environment["MASTER_PORT"]
        assert printed == [str(rank), str(local), str(rank), "4", "2", str(rank // 2), master]
        assert argv == [f"--rank={rank}", f"{local}:{rank}", "$(date) $(WORLD_SIZE)"]
        assert error_file == str(pod.root / f"run/torch-error-{rank}.json")
        assert f"[rank {rank}] [[" in runs[rank // 2].output
    for pod in pods:
        assert "class" not in pod.termination
        phases = ["started", "restored", "peersReady", "programStarted", "programEnded", "synced"]
        assert list(pod.termination["phases"]) == phases


def test_the_one_rank_of_a_pod_has_no_prefix_and_its_arguments_are_left_alone(make_workspace):
    (pod,) = torch_pods(make_workspace, 1)
    run = pod.launch("ranks", sys.executable, "-c", "import sys; print(sys.argv[1])", "$(RANK)")

    assert run.ended() == 0

    assert "$(RANK)\n" in run.output
    assert "[rank 0]" not in run.output
    assert pod.log("rank-0.log") == "$(RANK)\n"
    assert "peersReady" not in pod.termination["phases"]


@pytest.mark.parametrize(
    ("program", "code", "cause", "message"),
    [
        ("os.kill(os.getpid(), 9)", 137, "Signal", "the program was killed by SIGKILL"),
        ("print('last words'); sys.exit(3)", 3, "ApplicationError", "the program exited with code 3"),
        (
            "raise ValueError('bad batch 7')",
            1,
            "ApplicationError",
            "the program exited with code 1: ValueError: bad batch 7",
        ),
        (
            "from dtj_trainer import progress; progress.failed('DataCorrupt', 'no picture'); sys.exit(65)",
            65,
            "DataCorrupt",
            "no picture",
        ),
    ],
)
def test_the_failure_of_a_rank_is_the_pods_and_ends_the_other_ranks(
    make_workspace, program, code, cause, message
):
    (pod,) = torch_pods(make_workspace, 1, 3)
    run = pod.python(by_rank(rank0=SLEEP, rank1=program, rank2=SLEEP), "ranks")

    assert run.ended() == code, run.output

    found = pod.termination
    assert (found["class"], found["message"], found["rank"]) == (cause, message, 1)
    assert found["exitCode"] == code
    if code == 3:
        assert found["lastLogLines"] == ["last words"]


def test_a_rank_that_ignores_sigterm_is_killed_after_anothers_failure(make_workspace):
    (pod,) = torch_pods(make_workspace, 1, 2)
    stays = "signal.signal(signal.SIGTERM, lambda *_: print('no')); print('ready')\nwhile True: time.sleep(1)"
    fails = f"while not os.path.exists({str(pod.root / 'go')!r}): time.sleep(0.05)\nsys.exit(4)"
    run = pod.python(by_rank(rank0=fails, rank1=stays), "ranks")
    run.says("[rank 1] ready")
    (pod.root / "go").touch()

    assert run.ended() == 4

    assert "[rank 1] no" in run.output
    assert (pod.termination["rank"], pod.termination["exitCode"]) == (0, 4)


def test_a_rank_that_only_follows_is_not_the_cause_even_if_it_ends_first(make_workspace):
    """The faulty rank needs half a second to end after the others have lost their connections."""
    (pod,) = torch_pods(make_workspace, 1, 2)
    marker = str(pod.root / "lost")
    faulty = f"while not os.path.exists({marker!r}): time.sleep(0.05)\ntime.sleep(0.5); raise KeyError('the own one')"
    run = pod.python(by_rank(rank0=f"open({marker!r}, 'w'); {LOSES_CONNECTION}", rank1=faulty), "ranks")

    assert run.ended() == 1, run.output

    assert pod.termination["rank"] == 1
    assert pod.termination["class"] == "ApplicationError"
    assert pod.termination["message"] == "the program exited with code 1: KeyError: 'the own one'"


def test_ranks_that_lose_a_rank_of_another_pod_only_follow(make_workspace):
    (pod,) = torch_pods(make_workspace, 1, 2, DTJ_WORLD_SIZE="4")
    run = pod.python(by_rank(rank0=SLEEP, rank1=LOSES_CONNECTION), "ranks")

    assert run.ended() == 1

    assert pod.termination["class"] == "ConnectionLost"
    assert pod.termination["message"] == f"the connection to another rank was lost: {CLOSED}"
    assert pod.termination["lastLogLines"] == [CLOSED]


def test_the_others_go_on_after_a_rank_that_exits_early_with_0(make_workspace):
    (pod,) = torch_pods(make_workspace, 1, 2)
    late = f"while not os.path.exists({str(pod.root / 'go')!r}): time.sleep(0.05)\nprint('goes on')"
    run = pod.python(by_rank(rank0=LEAVES, rank1=late), "ranks")
    until_rank_0_has_left(run)
    (pod.root / "go").touch()

    assert run.ended() == 0, run.output

    assert "[rank 1] goes on" in run.output
    assert "class" not in pod.termination


LEAVES = (
    "import subprocess; to = subprocess.DEVNULL; "
    "print('leaves:', subprocess.Popen(['sleep', '600'], stdout=to, stderr=to).pid)"
)
"""Rank 0 ends with 0, and leaves a process, which dtj-launch kills once it has noted the end of rank 0."""


def until_rank_0_has_left(run) -> None:
    """Wait until dtj-launch has noted the end of rank 0, which runs LEAVES."""
    run.says("[rank 0] leaves: ")
    pid = int(run.output.split("[rank 0] leaves: ")[1].split()[0])
    until(lambda: not command_of(pid), "the process that rank 0 left is killed")


def children_with(run, name: str, value: str) -> list[int]:
    """The processes below a dtj-launch that have this variable."""
    below = descendants(run.process.pid)[1:]
    return [pid for pid in below if environment_of(pid).get(name) == value]


HOLDS_OUTPUT = "import subprocess; subprocess.Popen(['sleep', '6'], start_new_session=True)"
"""A process that outlives its rank: dtj-launch reads the rank's output for some seconds more."""


@pytest.mark.parametrize(
    ("world", "cause", "before"), [(2, "ApplicationError", "pass"), (4, "ConnectionLost", HOLDS_OUTPUT)]
)
def test_a_rank_that_exits_early_with_0_is_named_when_others_needed_it(make_workspace, world, cause, before):
    """In a job with other pods, one of them may have a better reason."""
    (pod,) = torch_pods(make_workspace, 1, 2, DTJ_WORLD_SIZE=str(world))
    follower = f"while not os.path.exists({str(pod.root / 'go')!r}): time.sleep(0.05)\n{LOSES_CONNECTION}"
    run = pod.python(by_rank(rank0=f"{before}; {LEAVES}", rank1=follower), "ranks")
    until_rank_0_has_left(run)
    (pod.root / "go").touch()

    assert run.ended() == 1, run.output

    assert pod.termination["class"] == cause
    assert pod.termination["message"].endswith("; rank 0 had ended with exit code 0")


def test_all_ranks_get_sigterm_may_save_and_the_pod_is_stopped(make_workspace):
    (pod,) = torch_pods(make_workspace, 1, 3)
    saves = (
        "import os, signal, sys, time\n"
        "def leave(*_):\n"
        "    time.sleep(1); print('saved'); sys.exit(int(os.environ['LEAVES']))\n"
        "signal.signal(signal.SIGTERM, leave); print('ready', flush=True)\n"
        "while True: time.sleep(1)"
    )
    # One leaves with 0, one with 143, and one dies of the signal.
    programs = [f"os.environ['LEAVES'] = {code!r}; exec({saves!r})" for code in ("0", "143")]
    run = pod.python(by_rank(rank0=programs[0], rank1=programs[1], rank2=f"print('ready'); {SLEEP}"), "ranks")
    for rank in range(3):
        run.says(f"[rank {rank}] ready")
    run.terminate()

    assert run.ended() == 143, run.output

    assert "[rank 0] saved" in run.output
    assert "[rank 1] saved" in run.output
    found = pod.termination
    assert (found["class"], found["signal"], found["exitCode"]) == ("Signal", 15, 143)
    assert found["message"] == "the program ended when it was told to stop (SIGTERM)"


def test_a_rank_that_leaves_with_143_untold_follows_and_others_may_finish_their_save(make_workspace):
    """The ranks agree to save and leave, because another pod was told to stop."""
    (pod,) = torch_pods(make_workspace, 1, 2, DTJ_WORLD_SIZE="4")
    saves = (
        f"while not os.path.exists({str(pod.root / 'go')!r}): time.sleep(0.05)\n"
        "time.sleep(6); print('saved'); sys.exit(143)"
    )
    run = pod.python(by_rank(rank0=saves, rank1="sys.exit(143)"), "ranks")
    until(lambda: pod.root.exists(), "the workspace")
    (pod.root / "go").touch()

    assert run.ended() == 143, run.output

    assert "[rank 0] saved" in run.output
    assert pod.termination["class"] == "ConnectionLost"


def test_no_rank_starts_when_the_restore_fails(make_workspace, object_store):
    (pod,) = torch_pods(make_workspace, 1, 2, DTJ_ARTIFACTS_URI="s3://no-such-bucket/job")
    run = pod.python("print('has run')", "ranks")

    assert run.ended() == 69

    assert "has run\n" not in run.output
    assert pod.termination["class"] == "ArtifactsUnavailable"
    assert "programStarted" not in pod.termination.get("phases", {})


def test_a_command_that_is_not_there_is_named_once(make_workspace):
    (pod,) = torch_pods(make_workspace, 1, 2)

    assert pod.launch("ranks", "no-such-program").ended() == 127

    assert pod.termination["class"] == "CommandNotFound"


SAVES = """
import os, sys, time
from dtj_trainer import progress
from dtj_trainer.artifacts import checkpoints
for step in range(1, int(sys.argv[1]) + 1):
    if os.environ["RANK"] == "0":
        checkpoints.save(step, lambda d: (d / "w").write_text(os.environ["DTJ_ATTEMPT"]))
        progress.report(step=step, final=True)
    time.sleep(0.2)
print("done")
"""


def test_only_the_pod_of_rank_0_uploads_more_than_logs(make_workspace, job_uri, job_store):
    pods = torch_pods(make_workspace, 2, 2, DTJ_ARTIFACTS_URI=job_uri, DTJ_ATTEMPT="1")
    runs = [pod.launch("ranks", sys.executable, "-c", SAVES, "1") for pod in pods]

    assert [run.ended() for run in runs] == [0, 0], runs[0].output + runs[1].output

    stored = keys(job_store)
    assert [key for key in stored if key.startswith("logs/")] == [
        f"logs/attempt-1/rank-{rank}.log" for rank in range(4)
    ]
    assert "checkpoints/1/manifest.json" in stored
    assert pods[0].termination["artifacts"]["checkpoint"]["step"] == 1
    assert pods[0].termination["progress"]["step"] == 1


def test_a_superseded_pod_ends_its_ranks(make_workspace, job_uri, job_store):
    (old,) = torch_pods(make_workspace, 1, 2, DTJ_ARTIFACTS_URI=job_uri, DTJ_ATTEMPT="1")
    run = old.launch("ranks", sys.executable, "-c", SAVES, "1000")
    until(lambda: any(key.endswith("manifest.json") for key in keys(job_store)), "a checkpoint")
    own = ("DTJ_ROOT", "DTJ_CONFIG_DIR", "DTJ_TERMINATION_LOG")
    shared = {name: value for name, value in old.environment.items() if name not in own}
    new = make_workspace("new", **{**shared, "DTJ_ATTEMPT": "2"})

    assert new.python("print('attempt 2')", "ranks").ended() == 0

    assert run.ended() == 69, run.output
    assert old.termination["class"] == "Superseded"
    assert not children_with(run, "DTJ_ATTEMPT", "1")


def test_stacks_of_all_ranks(make_workspace):
    (port,) = free_ports(1)
    (pod,) = torch_pods(make_workspace, 1, 2, DTJ_PROGRESS_PORT=str(port))
    run = pod.python("print('hangs')\n" + SLEEP, "ranks")
    for rank in range(2):
        run.says(f"[rank {rank}] hangs")
    request = urllib.request.Request(f"http://127.0.0.1:{port}/stacks", data=b"", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 202

    for rank in range(2):
        until((pod.root / "logs" / f"stacks-{rank}-1.txt").exists, f"the stacks of rank {rank}")
    run.terminate()
    assert run.ended() == 143


def test_pods_start_together_however_late_one_of_them_is(make_workspace):
    pods = torch_pods(make_workspace, 3)
    program = "import time; print('at', time.time())"
    early = [pod.python(program, "ranks") for pod in pods[:2]]
    for run in early:
        run.says("no artifacts are kept")  # The restore, after which a pod waits.
    began = time.time()
    runs = [*early, pods[2].python(program, "ranks")]

    assert [run.ended() for run in runs] == [0, 0, 0], [run.output for run in runs]

    started = [float(run.output.rpartition("at ")[2].split()[0]) for run in runs]
    assert min(started) > began


def test_a_missing_pod_is_named(make_workspace):
    pods = torch_pods(make_workspace, 4)
    early = pods[2].python("print('has run')", "ranks")
    early.says("no artifacts are kept")  # The restore, after which a pod waits.
    run = pods[0].python("print('has run')", "ranks", DTJ_PEER_TIMEOUT_SECONDS="5")

    assert run.ended() == 69
    early.terminate()
    assert early.ended() == 128 + signal.SIGTERM

    assert "has run\n" not in run.output + early.output
    assert pods[0].termination["class"] == "PeersUnreachable"
    assert pods[0].termination["message"] == "after 5 s 2 of 4 pods are not ready: worker-1, worker-3"


def test_a_pod_that_is_told_to_stop_while_it_waits_for_others_leaves_at_once(make_workspace):
    pods = torch_pods(make_workspace, 2)
    run = pods[1].python("print('has run')", "ranks", DTJ_PEER_TIMEOUT_SECONDS="600")
    run.says("no artifacts are kept")  # The restore, after which a pod waits.
    run.terminate()

    assert run.ended() == 128 + signal.SIGTERM
    assert "has run" not in run.output


@pytest.mark.parametrize("value", ["worker-0", "worker-0:", "worker-0:port", ":1", "worker-0:99999"])
def test_a_start_barrier_that_is_no_address_is_refused(make_workspace, value):
    (pod,) = torch_pods(make_workspace, 1, DTJ_START_BARRIER=value)
    run = pod.python("print('has run')", "ranks")

    assert run.ended() == 78
    assert f"DTJ_START_BARRIER must be host:port, not {value!r}" in run.output


def test_a_pod_without_ranks_is_refused(make_workspace):
    workspace = make_workspace(DTJ_STRATEGY="ParameterServer", DTJ_ROLE="chief")
    run = workspace.python("print('has run')", "ranks")

    assert run.ended() == 70
    assert "slots must be at least 1" in workspace.termination["message"]


def test_the_environment_of_this_process_has_no_rank():
    """Otherwise the tests above would prove nothing."""
    assert "RANK" not in os.environ
