"""The outcome of a launch: the cause among many failures, and the report of the cause.

* the cause among several failures of ranks
* classes of causes, and images without reports
* markers in the output, and termination messages
* settings, hosts and the command line of mpirun
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.conftest import pod_variable

from dtj_trainer import contract
from dtj_trainer.launch.failure import cause_from_last_lines, classify, followed_another
from dtj_trainer.launch.launcher import decide, read_blame
from dtj_trainer.launch.mpirun_hosts import HostfileError, mpirun_command, read_hosts
from dtj_trainer.launch.output import LastLines
from dtj_trainer.launch.peers import HostAnswer, PeersUnreachable, wait_for_peers
from dtj_trainer.launch.program import ProgramEnd
from dtj_trainer.launch.settings import SettingsError, read_settings
from dtj_trainer.launch.termination import encode, fitted_to, marker_line, split_marker, write_termination

FAILED = ProgramEnd(1)


def told(rank: int, code: int, cause: str | None = "ApplicationError", **more):
    """What a rank tells."""
    base = {"role": "worker", "index": rank, "rank": rank, "host": f"job-worker-{rank}", "exitCode": code}
    return base | ({"class": cause, "message": f"rank {rank}'s message"} if cause else {}) | more


def decided(end, exits=(), lines=(), lost=()):
    return decide(end, exits, lines, lambda: dict.fromkeys(lost, "it does not answer"))


def test_success_brings_the_reports_of_rank_0():
    message = decided(
        ProgramEnd(0), [told(1, 0, None), told(0, 0, None, progress={"step": 3}, phases={"synced": "t"})]
    )
    assert message == {"exitCode": 0, "progress": {"step": 3}, "phases": {"synced": "t"}}
    assert decided(ProgramEnd(0)) == {"exitCode": 0}


def test_success_tells_the_files_that_any_pod_did_not_upload():
    exits = [told(rank, 0, None, artifacts={"notUploaded": f"'{rank}.log': denied"}) for rank in (5, 1, 0)]
    exits.append(told(2, 0, None))
    exits[2]["artifacts"]["uri"] = "s3://bucket/job"
    assert decided(ProgramEnd(0), exits)["artifacts"] == {
        "uri": "s3://bucket/job",
        "notUploaded": "'0.log': denied; job-worker-1: '1.log': denied; job-worker-5: '5.log': denied",
    }
    many = [told(rank, 0, None, artifacts={"notUploaded": "x"}) for rank in range(1, 100)]
    assert decided(ProgramEnd(0), many)["artifacts"]["notUploaded"].endswith("; and files of 96 more pods")


def test_first_failure_is_the_cause_not_those_that_mpirun_stopped():
    exits = [
        told(2, 143, stopped=True),
        told(1, 3),
        told(0, 1),
        told(3, 143, "Signal", signal=15, stopped=True),
    ]
    message = decided(FAILED, exits)
    assert (message["rank"], message["exitCode"], message["message"]) == (1, 3, "rank 1's message")
    assert "stopped" not in message


def test_ranks_that_fail_because_a_host_is_gone_are_no_cause():
    message = decided(FAILED, [told(0, 1)], lost=["job-worker-1.job.ns.svc"])
    assert message["class"] == "ConnectionLost"
    assert message["message"] == (
        "connection lost to job-worker-1.job.ns.svc (it does not answer); "
        "then rank 0 on job-worker-0 failed: rank 0's message"
    )
    assert message["exitCode"] == 1


def test_a_host_that_told_its_failure_may_go_away_then():
    assert decided(FAILED, [told(0, 3)], lost=["job-worker-0.job.ns.svc"])["class"] == "ApplicationError"


def test_a_rank_that_was_killed_just_before_its_host_went_away_is_no_cause():
    killed = told(0, 137, "Signal", signal=9)
    message = decided(FAILED, [killed], lost=["job-worker-0.job.ns.svc"])
    assert (message["class"], message["host"]) == ("ConnectionLost", "job-worker-0.job.ns.svc")
    then = "(it does not answer); then rank 0 on job-worker-0 failed: rank 0's message"
    assert message["message"].endswith(then)
    assert decided(FAILED, [killed])["class"] == "Signal"
    aborted = told(0, 134, "Signal", signal=6)
    assert decided(FAILED, [aborted], lost=["job-worker-0.job.ns.svc"])["class"] == "Signal"


@pytest.mark.parametrize(
    "cause",
    [
        "OOMKilled",
        "DiskFull",
        "WorldSizeMismatch",
        "NoAccelerator",
        "CommandNotFound",
        "ModuleNotFound",
        "ArtifactsUnavailable",
    ],
)
def test_certain_causes_need_no_look_at_the_hosts(cause):
    assert decided(FAILED, [told(0, 137, cause)], lost=["job-worker-1"])["class"] == cause


def test_rank_of_a_pod_that_ends_takes_the_others_with_it():
    """A rank told to stop saves and leaves; the others agree to leave with it, without a fault of theirs."""
    for exits in ([told(1, 143), told(0, 143, stopped=True)], [told(0, 143, stopped=True), told(1, 143)]):
        message = decided(FAILED, exits)
        assert message["class"] == "ConnectionLost"
        assert message["message"] == "rank 0 on job-worker-0 was told to stop: its pod ended"


def test_launcher_told_to_stop():
    message = decided(ProgramEnd(1, stop_signal=15), [told(0, 143, "Signal", stopped=True)])
    assert (message["class"], message["exitCode"], message["signal"]) == ("Signal", 143, 15)
    assert decided(ProgramEnd(1, stop_signal=15), [told(0, 3)])["class"] == "ApplicationError"


def test_a_stop_before_any_rank_ran_is_no_success():
    """mpirun ends with 0 when the signal that it passes on comes while it starts."""
    assert decided(ProgramEnd(0, stop_signal=15))["class"] == "Signal"
    assert decided(ProgramEnd(0, stop_signal=15), [told(0, 0, None)]) == {"exitCode": 0}


def test_mpirun_that_is_killed_is_no_lost_connection():
    found = decide(ProgramEnd(137, signal=9), [], ["[rank 0] step 40"], dict)
    assert (found["class"], found["signal"], found["exitCode"]) == ("Signal", 9, 137)
    assert found["message"] == "mpirun was killed by SIGKILL"


def test_mpirun_missing_in_the_image():
    message = decided(ProgramEnd(127, missing="mpirun is not on the PATH of the image"))
    assert message["class"] == "CommandNotFound"


BY_EXIT = """\
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[21342,1],1]
  Exit code:    3
--------------------------------------------------------------------------"""
BY_SIGNAL = """\
--------------------------------------------------------------------------
mpirun noticed that process rank 1 with PID 0 on node job-worker-1 exited on signal 9 (Killed).
--------------------------------------------------------------------------"""
BY_CODE_ONLY = """\
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted."""
TOO_FEW = """\
There are not enough slots available in the system to satisfy the 4
slots that were requested by the application:"""


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        (BY_EXIT, 1, {"class": "ApplicationError", "exitCode": 3, "rank": 1}),
        (
            BY_SIGNAL,
            137,
            {"class": "Signal", "exitCode": 137, "rank": 1, "host": "job-worker-1", "signal": 9},
        ),
        (BY_CODE_ONLY, 5, {"class": "ApplicationError", "exitCode": 5}),
        (TOO_FEW, 1, {"class": "WorldSizeMismatch", "exitCode": 78}),
        ("ssh: connection reset", 255, {"class": "ConnectionLost", "exitCode": 255}),
    ],
)
def test_images_whose_ranks_tell_nothing(text, code, expected):
    message = decided(ProgramEnd(code), lines=text.splitlines())
    message.pop("message")
    assert message == expected


def test_blame_of_nothing():
    assert read_blame([], 0) == (None, None, None, None, False)


@pytest.mark.parametrize(
    ("end", "cause", "words"),
    [
        (ProgramEnd(3), "ApplicationError", "exited with code 3"),
        (ProgramEnd(139), "ApplicationError", "(perhaps because SIGSEGV ended a child process)"),
        (ProgramEnd(255), "ApplicationError", "exited with code 255"),
        (ProgramEnd(137, signal=9), "Signal", "killed by SIGKILL"),
        (ProgramEnd(137, signal=9, oom_killed=True), "OOMKilled", "memory limit"),
        (ProgramEnd(1, oom_killed=True), "OOMKilled", "memory limit"),
        (ProgramEnd(127, missing="x is not there"), "CommandNotFound", "x is not there"),
    ],
)
def test_classes(end, cause, words):
    found, message = classify(end)
    assert found == cause
    assert words in message


@pytest.mark.parametrize(
    ("end", "lines", "cause"),
    [
        (ProgramEnd(1), ["OSError: [Errno 28] No space left on device: '/dtj/checkpoints/50'"], "DiskFull"),
        (ProgramEnd(1), ["tar: model.tar: Cannot write: Disk quota exceeded", "tar: exiting"], "DiskFull"),
        (
            ProgramEnd(1),
            ["RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"],
            "DiskFull",
        ),
        (
            ProgramEnd(1),
            ["RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed"],
            "DiskFull",
        ),
        (ProgramEnd(1), ["OSError: 4000000 requested and 1048544 written"], "DiskFull"),
        (ProgramEnd(1), ["sqlite3.OperationalError: database or disk is full"], "DiskFull"),
        (ProgramEnd(1), ["No space left on device", *["it goes on without"] * 5], None),
        (ProgramEnd(143, stop_signal=15), ["OSError: [Errno 28] No space left on device"], None),
        (ProgramEnd(65), ["DataCorrupt: train-images is cut off"], "DataCorrupt"),
        (ProgramEnd(1), ["DataCorrupt: train-images is cut off"], None),
    ],
)
def test_causes_in_the_last_lines(end, lines, cause):
    found = cause_from_last_lines(end, lines)
    assert (found and found[0]) == cause
    assert found is None or found[1] in f"a disk is full: {lines[0]}"


NO_MODULE = ["    import torhc", "ModuleNotFoundError: No module named 'torhc'"]


@pytest.mark.parametrize(
    ("code", "lines", "missing"),
    [
        (1, NO_MODULE, "No module named 'torhc'"),
        (1, [*NO_MODULE, "[0] a library says farewell"], "No module named 'torhc'"),
        (1, ["/opt/venv/bin/python3.11: No module named training"], "No module named training"),
        (
            1,
            ["ModuleNotFoundError: No module named 'a.b'; 'a' is not a package"],
            "No module named 'a.b'; 'a' is",
        ),
        (1, [*NO_MODULE, "", "During handling of it:", "RuntimeError: pip failed"], None),
        (1, ["it says ModuleNotFoundError: No module named 'x'"], None),
        (3, NO_MODULE, None),
    ],
)
def test_a_missing_module_is_told_by_the_end_of_the_traceback(code, lines, missing):
    found = cause_from_last_lines(ProgramEnd(code), lines)
    assert (found and found[0]) == ("ModuleNotFound" if missing else None)
    assert missing is None or missing in found[1]


@pytest.mark.parametrize(
    ("end", "lines", "followed"),
    [
        (
            ProgramEnd(1),
            ["horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."],
            True,
        ),
        (ProgramEnd(1), ["ValueError: no such column"], False),
        (ProgramEnd(143, stop_signal=15), ["HorovodInternalError: Horovod has been shut down."], False),
        (ProgramEnd(0), ["caught a HorovodInternalError and went on"], False),
    ],
)
def test_a_rank_that_fails_only_because_another_ended(end, lines, followed):
    assert followed_another(end, lines) is followed


# --- markers and messages ----------------------------------------------------------------------


def test_marker_between_other_output():
    line = marker_line(told(1, 3))
    assert line.endswith("\n")
    assert line.count("\n") == 1
    text, found = split_marker(f"half a line {line.strip()}[rank 0] the rest")
    assert text == "half a line [rank 0] the rest"
    assert found == told(1, 3)


@pytest.mark.parametrize(
    "line", ["", "plain", f"{contract.RANK_EXIT_MARKER}torn {{", f"{contract.RANK_EXIT_MARKER}[1]"]
)
def test_what_is_no_marker_is_passed_on(line):
    assert split_marker(line) == (line, None)


text = st.text(max_size=3000)


@given(
    text,
    st.lists(text, max_size=40),
    st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=10),
)
def test_any_message_fits(message, lines, phases):
    full = {"class": "X", "message": message, "exitCode": 1, "lastLogLines": lines, "phases": phases}
    fitted = fitted_to(full, contract.TERMINATION_MESSAGE_BYTES)
    content = encode(fitted)
    assert len(content) <= contract.TERMINATION_MESSAGE_BYTES
    read = json.loads(content)
    assert read["class"] == "X"
    assert read["exitCode"] == 1
    assert full["lastLogLines"] is lines  # What was given is left alone.


@given(text, st.lists(text, max_size=5))
def test_any_marker_is_one_piece(message, lines):
    line = marker_line(told(0, 1) | {"message": message, "lastLogLines": lines})
    assert len(line.encode()) <= 4096
    assert split_marker(line)[1] is not None


def test_newest_lines_are_kept():
    lines = [f"{n} {'x' * 390}" for n in range(20)]
    fitted = fitted_to({"class": "X", "lastLogLines": lines}, 4096)
    assert fitted["lastLogLines"][-1].startswith("19 xxx")
    assert len(fitted["lastLogLines"]) == 20  # Cut short rather than dropped.
    assert fitted_to({"lastLogLines": ["short"] * 20}, 4096)["lastLogLines"] == ["short"] * 20


def test_a_message_takes_the_place_of_a_longer_one(tmp_path):
    path = tmp_path / "termination.json"
    for text in ("long" * 100, "short"):
        write_termination(path, {"class": "X", "message": text})
        assert json.loads(path.read_bytes()) == {"class": "X", "message": text}


def test_last_lines_skip_empty_ones():
    lines = LastLines(2)
    lines.add(b"a\n\nb\n")
    lines.add(b"   \nc\n\n")
    assert lines.lines() == ["b", "c"]


# --- settings, hosts, mpirun's command line ------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "DTJ_POD",
            '{"role": "worker", "index": -1}',
            "DTJ_POD can't be read: index must be a whole number of at least 0, not -1",
        ),
        (
            "DTJ_POD",
            "",
            "DTJ_POD is not set: the operator and `dtj run` set it in each pod, unless their release is older than "
            "that of this dtj_trainer",
        ),
        ("DTJ_WORLD_SIZE", "0", "DTJ_WORLD_SIZE must be a whole number of at least 1, not '0'"),
        (
            "DTJ_SYNC_TIMEOUT_SECONDS",
            "soon",
            "DTJ_SYNC_TIMEOUT_SECONDS must be a number of seconds from 0 to 1e9, not 'soon'",
        ),
        (
            "DTJ_SYNC_TIMEOUT_SECONDS",
            "nan",
            "DTJ_SYNC_TIMEOUT_SECONDS must be a number of seconds from 0 to 1e9, not 'nan'",
        ),
        ("DTJ_MPI_ARGS", "'open", "DTJ_MPI_ARGS can't be split into words: No closing quotation"),
    ],
)
def test_bad_settings_are_named(name, value, words):
    with pytest.raises(SettingsError) as caught:
        read_settings({**pod_variable({}), name: value})
    assert str(caught.value) == words


def test_mpirun_command():
    pod = pod_variable({"DTJ_ROLE": "launcher"})
    settings = read_settings(
        {**pod, "DTJ_WORLD_SIZE": "4", "DTJ_MPI_ARGS": "--mca btl_tcp_if_include 'eth0'"}
    )
    given_hosts = {"OMPI_MCA_orte_default_hostfile": "/etc/dtj/hostfile"}
    assert mpirun_command(settings, ["python", "train.py"], given_hosts) == [
        *("mpirun", "-n", "4", "--bind-to", "none", "--map-by", "slot"),
        *("--mca", "pml", "ob1", "--mca", "btl", "^openib,ofi", "--mca", "btl_tcp_if_include", "eth0"),
        *("/bin/sh", "/etc/dtj/rank.sh", "python", "train.py"),
    ]
    elsewhere = read_settings({**pod, "DTJ_MPIRUN": "/opt/openmpi/bin/mpirun"})
    assert mpirun_command(elsewhere, ["x"], {})[0] == "/opt/openmpi/bin/mpirun"
    assert mpirun_command(settings, ["x"], {})[1:3] == ["--hostfile", "/etc/dtj/hostfile"]


def test_hostfile(tmp_path):
    path = tmp_path / "hostfile"
    path.write_text(
        "# workers\njob-worker-0.job slots=2\n\njob-worker-1.job slots=2 # second\njob-worker-0.job\n"
    )
    assert read_hosts(path) == ["job-worker-0.job", "job-worker-1.job"]
    path.write_text("# nobody\n")
    with pytest.raises(HostfileError, match="names no host"):
        read_hosts(path)
    with pytest.raises(HostfileError, match="can't be read: No such file"):
        read_hosts(tmp_path / "missing")


def test_peers_are_asked_until_all_answer():
    asked: list[list[str]] = []

    def ask(hosts):
        asked.append(hosts)
        ready = "a" if len(asked) < 3 else "b"
        return {host: HostAnswer.READY if host == ready else HostAnswer.UNRESOLVED for host in hosts}

    wait_for_peers(["a", "b"], ask, 60, "hosts", "are away")
    assert asked == [["a", "b"], ["b"], ["b"]]


def test_peers_that_never_answer_are_named():
    answers = {
        "a": HostAnswer.UNRESOLVED,
        "b": HostAnswer.NO_SSH,
        "c": HostAnswer.READY,
        "d": HostAnswer.UNRESOLVED,
    }
    with pytest.raises(PeersUnreachable) as caught:
        wait_for_peers(
            list(answers), lambda hosts: {host: answers[host] for host in hosts}, 0, "hosts", "are away"
        )
    assert str(caught.value) == (
        "after 0 s 3 of 4 hosts are away: a, d (its name does not resolve); b (what answers is no ssh server)"
    )
