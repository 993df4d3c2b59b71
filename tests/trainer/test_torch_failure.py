"""Whose failure it was, by the output of PyTorch's ranks. The texts are those of PyTorch 2.13 on CPUs, and of NCCL.

* exceptions of lost connections, and others
* a rank's report
* the report of a command like torchrun
"""

from __future__ import annotations

import json
import signal

import pytest

from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.contract.torch_output import Raised, raised
from dtj_trainer.launch.failure import FailedRank, classify, explain, failed_ranks
from dtj_trainer.launch.program import ProgramEnd

GLOO = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
CLOSED = f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:12471. This is typically caused by."
FOLLOWERS = [
    CLOSED,
    f"{GLOO}pair.cc:537] Read error [127.0.0.1]:52939: Connection reset by peer. This is typically caused by a",
    f"{GLOO}unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete",
    f"{GLOO}unbound_buffer.cc:129] Timed out waiting 5000ms for send operation to complete",
    "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 1800000 ms",
    "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv "
    "from rank 0. Please check rank 0 logs for faulty rank.",
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
    "server shutdown or crash?",
    "torch.distributed.DistNetworkError: The client socket has timed out after 5000ms while trying to connect to "
    "(127.0.0.1, 29723).",
    "torch.distributed.DistStoreError: Timed out after 6 seconds waiting for clients. 2/3 clients joined.",
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "
    "remote process exited or there was a network error, NCCL version 2.27.5",
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: "
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, "
    "NumelOut=1, Timeout(ms)=600000) ran for 600027 milliseconds before timing out.",
    "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
    "via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
]
OWN = [
    "ValueError: bad batch 7",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "requests.exceptions.ConnectionError: Connection reset by peer",
    "RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0 and [4] at entry 1",
]
TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
    "29713, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
TAKEN_EARLIER = (
    "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed "
    "to bind to [::]:29500 (errno: 98 - Address already in use)."
)


def with_traceback(text: str, rank: int | None = None) -> list[str]:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "    work.wait()",
    ]
    prefix = "" if rank is None else f"[rank{rank}]: "
    first, *more = text.split("\n")
    return [f"{prefix}{line}" for line in (*lines, first, *more)]


def rank_report(end: ProgramEnd, lines: list[str], tmp_path, *, alone: bool = False) -> dict:
    cause, message = classify(end)
    report = {"class": cause, "message": message, "exitCode": end.exit_code, "rank": 2}
    explain(report, end, lines, tmp_path / "error.json", rank=2, alone=alone)
    return report


@pytest.mark.parametrize("text", FOLLOWERS)
def test_a_lost_connection_only_follows(text, tmp_path):
    end = ProgramEnd(1) if "what()" not in text else ProgramEnd(134, signal=signal.SIGABRT)
    report = rank_report(end, with_traceback(text, rank=2), tmp_path)

    assert report["class"] == FailureClass.CONNECTION_LOST
    assert report["message"].startswith("the connection to another rank was lost: ")


@pytest.mark.parametrize("text", OWN)
def test_any_other_exception_is_the_ranks_own(text, tmp_path):
    report = rank_report(ProgramEnd(1), with_traceback(text, rank=2), tmp_path)

    assert report["class"] == FailureClass.APPLICATION_ERROR
    assert report["message"] == f"the program exited with code 1: {text}"


@pytest.mark.parametrize("text", [TAKEN, TAKEN_EARLIER])
def test_a_taken_master_port_is_named(text, tmp_path):
    report = rank_report(ProgramEnd(1), with_traceback(text), tmp_path)

    assert report["class"] == FailureClass.PORT_IN_USE
    assert report["message"] == f"MASTER_PORT is in use: {text}"


def test_a_port_of_the_program_that_is_taken_is_the_programs(tmp_path):
    text = "OSError: [Errno 98] Address already in use"

    assert rank_report(ProgramEnd(1), with_traceback(text), tmp_path)["class"] == "ApplicationError"


def test_the_last_exception_counts(tmp_path):
    lines = [*with_traceback(OWN[0]), "I go on", *with_traceback(CLOSED, 2)]

    assert rank_report(ProgramEnd(1), lines, tmp_path)["class"] == FailureClass.CONNECTION_LOST


def test_an_abort_while_python_ends_after_an_exception_is_the_exceptions(tmp_path):
    """As it happens with gloo's threads when a rank raises in the midst of a collective."""
    lines = [
        *with_traceback("ValueError: bad batch 7", 2),
        "terminate called without an active exception",
        "Fatal Python error: Aborted",
        "Thread 0x00007fb78767eb80 (most recent call first):",
        "  <no Python frame>",
    ]
    report = rank_report(ProgramEnd(134, signal=signal.SIGABRT), lines, tmp_path)

    assert report["class"] == FailureClass.APPLICATION_ERROR
    assert report["message"] == "the program was killed by SIGABRT: ValueError: bad batch 7"


def test_an_abort_of_a_script_that_has_ended_has_a_remedy(tmp_path):
    remedy = "if the script was at its end, call destroy_process_group() there (docs/troubleshooting.md)"
    lines = ["epoch 2: loss 0.6604", "terminate called without an active exception"]

    of_rank = rank_report(ProgramEnd(134, signal=signal.SIGABRT), lines, tmp_path)
    of_torchrun = launcher_report([*lines, *table((0, -15), (1, -6))], tmp_path)

    assert (of_rank["class"], of_rank["message"]) == (
        "Signal",
        f"the program was killed by SIGABRT; {remedy}",
    )
    assert of_torchrun["message"] == f"the process of rank 1 was killed by SIGABRT; {remedy}"


def test_an_abort_without_an_exception_stays_a_signal(tmp_path):
    report = rank_report(ProgramEnd(134, signal=signal.SIGABRT), ["double free or corruption"], tmp_path)

    assert (report["class"], report["message"]) == ("Signal", "the program was killed by SIGABRT")


@pytest.mark.parametrize(
    ("text", "cause"), [("ValueError: bad batch 7", "ApplicationError"), (CLOSED, "ConnectionLost")]
)
def test_the_recorded_exception_counts_more_than_the_output(tmp_path, text, cause):
    recorded = {"message": {"message": text, "extraInfo": {"py_callstack": "…", "timestamp": "1795565079"}}}
    (tmp_path / "error.json").write_text(json.dumps(recorded))
    report = rank_report(ProgramEnd(1), with_traceback("KeyError: 'another'"), tmp_path)

    assert report["class"] == cause
    assert report["message"].endswith(f": {text}")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"message": {}}', "null"])
def test_a_damaged_error_file_is_ignored(tmp_path, content):
    (tmp_path / "error.json").write_text(content)
    report = rank_report(ProgramEnd(1), with_traceback("ValueError: bad batch 7"), tmp_path)

    assert report["message"] == "the program exited with code 1: ValueError: bad batch 7"


@pytest.mark.parametrize("end", [ProgramEnd(143), ProgramEnd(143, signal=signal.SIGTERM)])
def test_who_leaves_untold_may_follow_a_rank_of_another_pod(tmp_path, end):
    assert rank_report(end, [], tmp_path)["class"] == FailureClass.CONNECTION_LOST
    assert rank_report(end, [], tmp_path, alone=True)["class"] == classify(end)[0]


@pytest.mark.parametrize(
    "end",
    [
        ProgramEnd(1, stop_signal=signal.SIGTERM),
        ProgramEnd(3),
        ProgramEnd(137, signal=signal.SIGKILL),
        ProgramEnd(137, signal=signal.SIGKILL, oom_killed=True),
        ProgramEnd(1, oom_killed=True),
    ],
)
def test_ends_that_no_exception_explains_stay(tmp_path, end):
    report = rank_report(end, with_traceback(CLOSED, 2), tmp_path)

    assert (report["class"], report["message"]) == classify(end)


def test_exceptions_with_and_without_a_rank():
    lines = [*with_traceback("KeyError: 'a'"), *with_traceback("ValueError: b\nmore", 3), "no Error: here"]

    found = raised(lines)

    assert [(each.rank, each.first_line) for each in found] == [(None, "KeyError: 'a'"), (3, "ValueError: b")]
    assert Raised(None, "x" * 9999).first_line == "x" * 500


def table(*rows: tuple[int, int]) -> list[str]:
    """torchrun's last lines; the root cause is the last row."""

    def row(rank: int, code: int) -> list[str]:
        name = f" ({signal.Signals(-code).name})" if code < 0 else ""
        return [
            "[0]:",
            "  time      : 2026-11-25_00:08:09",
            "  host      : localhost",
            f"  rank      : {rank} (local_rank: {rank})",
            f"  exitcode  : {code} (pid: 20259) {name}",
            "  error_file: <N/A>",
            "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        ]

    *others, cause = rows
    return [
        "Traceback (most recent call last):",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 55,
        "tr.py FAILED",
        "-" * 55,
        "Failures:",
        *(line for each in others for line in row(*each)),
        "-" * 55,
        "Root Cause (first observed failure):",
        *row(*cause),
        "=" * 55,
    ]


def launcher_report(lines: list[str], tmp_path, *, alone: bool = False, code: int = 1) -> dict:
    cause, message = classify(ProgramEnd(code))
    report = {"class": cause, "message": message, "exitCode": code, "rank": 0}
    explain(report, ProgramEnd(code), lines, tmp_path / "error.json", rank=None, alone=alone)
    return report


def test_the_table_of_torchrun_is_read():
    assert failed_ranks(table((0, -15), (3, -9), (1, 1))) == [(1, 1), (3, -9), (0, -15)]
    assert failed_ranks(["rank : 1 (local_rank: 1)", "something else"]) == []
    assert failed_ranks(table((2, 3))) == [FailedRank(2, 3)]


@pytest.mark.parametrize(
    ("rows", "lines", "cause", "message", "rank"),
    [
        (
            [(0, -15), (1, -9)],
            with_traceback(CLOSED, 0),
            "Signal",
            "the process of rank 1 was killed by SIGKILL",
            1,
        ),
        (
            [(1, -9), (0, 1)],
            with_traceback(CLOSED, 0),
            "Signal",
            "the process of rank 1 was killed by SIGKILL",
            1,
        ),
        (
            [(0, -15), (1, 3)],
            with_traceback(CLOSED, 0),
            "ApplicationError",
            "the process of rank 1 exited with code 3",
            1,
        ),
        (
            [(0, -15), (1, 1)],
            [*with_traceback("ValueError: bad batch 7", 1), *with_traceback(CLOSED, 0)],
            "ApplicationError",
            "the program exited with code 1: ValueError: bad batch 7",
            1,
        ),
        (
            [(1, 1), (0, 1)],
            [*with_traceback("ValueError: bad batch 7", 1), *with_traceback(CLOSED, 0)],
            "ApplicationError",
            "the program exited with code 1: ValueError: bad batch 7",
            1,
        ),
        (
            [(1, -15), (0, 1)],
            with_traceback(CLOSED, 0),
            "ConnectionLost",
            f"the connection to another rank was lost: {CLOSED}",
            0,
        ),
        (
            [(1, -15), (0, 143)],
            [],
            "ConnectionLost",
            "the program ended as after SIGTERM, which this pod did not get: perhaps another pod got it",
            0,
        ),
        ([(0, 1)], [], "ApplicationError", "the process of rank 0 exited with code 1", 0),
    ],
)
def test_the_rank_that_failed_under_torchrun(tmp_path, rows, lines, cause, message, rank):
    report = launcher_report([*lines, *table(*rows)], tmp_path)

    assert (report["class"], report["message"], report["rank"]) == (cause, message, rank)
    assert report.get("signal") == (9 if cause == "Signal" else None)


def test_the_recorded_exception_is_that_of_torchruns_root_cause(tmp_path):
    (tmp_path / "error.json").write_text(
        json.dumps({"message": {"message": "KeyError: 'w'", "errorCode": 1}})
    )
    report = launcher_report(table((0, -15), (1, 1)), tmp_path)

    assert (report["rank"], report["message"]) == (1, "the program exited with code 1: KeyError: 'w'")


def test_the_table_counts_below_a_rank_too(tmp_path):
    """The program of a rank may be a script that calls torchrun."""
    report = rank_report(ProgramEnd(1), table((2, -9)), tmp_path)

    assert (report["class"], report["signal"], report["rank"]) == ("Signal", 9, 2)
    assert report["message"] == "the process of rank 2 was killed by SIGKILL"


def test_a_command_without_a_table(tmp_path):
    assert launcher_report(with_traceback(TAKEN), tmp_path)["class"] == FailureClass.PORT_IN_USE
    assert launcher_report(with_traceback(CLOSED, 1), tmp_path)["class"] == FailureClass.CONNECTION_LOST
    assert launcher_report(["nothing"], tmp_path)["message"] == "the program exited with code 1"
