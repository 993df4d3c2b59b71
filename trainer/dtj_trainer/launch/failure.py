"""Turns the end of a program into the failure class and the message for the user.

`horovod_rank`, `replica` and the gloo ranks call it for their own program. Not here: what the ends of all ranks mean
for a run under mpirun (`launcher`), and how the operator treats a class (`dtj/status`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.contract.tensorflow_output import lost_connection
from dtj_trainer.contract.torch_output import Raised, raised
from dtj_trainer.launch.program import ProgramEnd
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.termination import RankExit

# These functions recognize the cause of a failure in the last lines of a program's output.

_LINES_AFTER_CAUSE = 5
"""The cause may be followed by lines that libraries print at a program's exit."""
_NO_SPACE = re.compile(
    "|".join(
        (
            # The operating system's message, which most programs print in their own error or in an exception.
            *(re.escape(os.strerror(number)) for number in (errno.ENOSPC, errno.EDQUOT)),
            # torch.save: its writer finds fewer bytes in the file than it has written.
            r"unexpected pos \d+ vs \d+",
            r"PytorchStreamWriter failed writing",
            # numpy.save, by ndarray.tofile, which finds fewer bytes written than it asked for.
            r"OSError: \d+ requested and \d+ written",
            # The message of SQLite.
            r"database or disk is full",
        )
    )
)
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: *")
_NO_MODULE = re.compile(r"(?:ModuleNotFoundError|\S*python[\d.]*): (No module named \S+.*)")
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)\b")


def closing(lines: Sequence[str]) -> list[str]:
    """Return the lines that may contain the cause, from the last one, without PyTorch's prefix of a rank."""
    return [_RANK_PREFIX.sub("", line.strip()) for line in reversed(lines[-_LINES_AFTER_CAUSE:])]


def reports_full_disk(line: str) -> bool:
    """Return whether this line reports a failed write, as on a full disk."""
    return _NO_SPACE.search(line) is not None


def missing_module(lines: Sequence[str]) -> str | None:
    """Return `No module named 'x'` if the last traceback ends so, or if Python did not find the program itself."""
    for line in closing(lines):
        if found := _NO_MODULE.fullmatch(line):
            return found[1]
        if _EXCEPTION.match(line):
            return None
    return None


# Remedies for errors whose messages do not name the remedy.

_GPU_FULL = "the GPU is out of memory: `nvidia-smi` shows the processes that hold it"
_REMEDIES = {
    "'Variable' object has no attribute 'ref'": (
        "the script is one for Keras 2: set TF_USE_LEGACY_KERAS=1 in spec.env, with tf_keras in the image"
        " (docs/own-script.md)"
    ),
    # NCCL, cuBLAS and cuDNN, at their start on a GPU that another process has filled.
    "Failed to CUDA calloc": _GPU_FULL,
    "Failed to CUDA malloc": _GPU_FULL,
    "CUBLAS_STATUS_ALLOC_FAILED": _GPU_FULL,
    "CUDNN_STATUS_ALLOC_FAILED": _GPU_FULL,
}
"""The remedy by a text in a program's last lines."""
_LINES = 5
"""How many last lines are searched: libraries may print further lines after the error."""


def remedy(last_lines: Sequence[str]) -> str | None:
    """Return the remedy for the error in a program's last lines; None for an unknown error."""
    text = "\n".join(last_lines[-_LINES:])
    return next((what for error, what in _REMEDIES.items() if error in text), None)


log = logging.getLogger(__name__)

_OWN_CODES = {contract.EXIT_DATA, contract.EXIT_UNAVAILABLE, contract.EXIT_CONFIG}
_CLASSES = frozenset[str](FailureClass)
_UNCAUGHT = 1
"""Python's exit code after an unhandled exception."""
_SHUT_DOWN = "HorovodInternalError"
"""The exception that Horovod raises in all ranks when one rank has ended."""


def rank_exit(settings: Settings, end: ProgramEnd, last_lines: Sequence[str] = ()) -> RankExit:
    """Describe a rank's or a replica's end, without progress and artifacts."""
    exit_report: RankExit = {
        "role": settings.pod.role,
        "index": settings.pod.index,
        "host": settings.host,
        "exitCode": end.exit_code,
    }
    if settings.pod.slots:
        exit_report["rank"] = settings.pod.ranks.start if settings.rank is None else settings.rank
    if end.stopped:
        exit_report["stopped"] = True
    if end.succeeded:
        return exit_report
    exit_report["class"], exit_report["message"] = (
        cause_from_program(settings, end) or cause_from_last_lines(end, last_lines) or classify(end)
    )
    if exit_report["class"] == FailureClass.APPLICATION_ERROR and (what := remedy(last_lines)):
        exit_report["message"] += f"; {what}"
    if end.signal is not None:
        exit_report["signal"] = end.signal
    return exit_report


def cut_off(end: ProgramEnd, exit_report: RankExit) -> bool:
    """Return whether the last file that a program wrote may be incomplete: after a kill, or with a full disk."""
    return end.killed or exit_report.get("class") == FailureClass.DISK_FULL


def unavailable(
    settings: Settings, message: str, cause: FailureClass = FailureClass.ARTIFACTS_UNAVAILABLE
) -> RankExit:
    """Describe the end of a process because of a restore, an upload or a wait for another process that failed."""
    log.error("%s", message)
    exit_report = rank_exit(settings, ProgramEnd(contract.EXIT_UNAVAILABLE))
    exit_report["class"], exit_report["message"] = cause, message
    return exit_report


def failure_files(settings: Settings) -> list[Path]:
    """Return the files in which the program may describe the cause of its failure: one, or one for each rank of the
    pod if the program is a command that starts all of them.
    """
    ranks = [settings.rank] if settings.rank is not None else settings.pod.ranks or [0]
    return [settings.root / contract.FAILURE_FILE.format(rank=rank) for rank in ranks]


def torch_error_file(settings: Settings) -> Path:
    """Return the file in which PyTorch's `record` writes the exception of this rank, or of the command."""
    rank = settings.pod.ranks.start if settings.rank is None else settings.rank
    return settings.root / contract.TORCH_ERROR_FILE.format(rank=rank)


def forget_failures(settings: Settings) -> None:
    """Remove the descriptions of failures that an earlier program may have left."""
    for path in (*failure_files(settings), torch_error_file(settings)):
        path.unlink(missing_ok=True)


def cause_from_program(settings: Settings, end: ProgramEnd) -> tuple[str, str] | None:
    """Return the class and message that the program wrote before it exited; None without them."""
    if not end.by_itself:
        return None
    for path in failure_files(settings):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(path.read_bytes())
            return FailureClass(content["class"]), str(content["message"])
    return None


def cause_from_last_lines(end: ProgramEnd, last_lines: Sequence[str]) -> tuple[str, str] | None:
    """Find the cause in the last lines of a program: a full disk, a missing module, another task of TensorFlow that
    went away, or, for a program that exits with one of dtj's codes, a line like `DataCorrupt: what`.
    """
    if not end.by_itself:
        return None
    for line in closing(last_lines):
        if reports_full_disk(line):
            return FailureClass.DISK_FULL, f"a disk is full: {line}"
        cause, _, message = line.partition(": ")
        if end.exit_code in _OWN_CODES and cause in _CLASSES:
            return cause, message
    if end.exit_code == _UNCAUGHT and (missing := missing_module(last_lines)):
        return FailureClass.MODULE_NOT_FOUND, f"the program did not find a module of Python: {missing}"
    if lost := lost_connection(last_lines):
        return FailureClass.CONNECTION_LOST, f"the connection to another pod was lost: {lost}"
    return None


def followed_another(end: ProgramEnd, last_lines: Sequence[str]) -> bool:
    """Return whether the last lines show that a rank's program failed only because another rank had ended."""
    if end.succeeded or not end.by_itself:
        return False
    return any(_SHUT_DOWN in line for line in closing(last_lines))


def classify(end: ProgramEnd, who: str = "the program") -> tuple[FailureClass, str]:
    """Derive the class and the message of a failure from the exit code and the signal.

    who: what the message calls the program.
    """
    if end.missing is not None:
        return FailureClass.COMMAND_NOT_FOUND, end.missing
    if end.signal is not None:
        name = signal_name(end.signal)
        if end.oom_killed:
            return FailureClass.OOM_KILLED, f"{who} was killed because the container reached its memory limit"
        return FailureClass.SIGNAL, f"{who} was killed by {name}"
    if end.oom_killed:
        return (
            FailureClass.OOM_KILLED,
            f"{who} exited with code {end.exit_code} after the kernel killed one of its processes "
            "because the container reached its memory limit",
        )
    if end.exit_code > 128 and (name := signal_name(end.exit_code - 128)).startswith("SIG"):
        message = f"{who} exited with code {end.exit_code} (perhaps because {name} ended a child process)"
        return FailureClass.APPLICATION_ERROR, message
    return FailureClass.APPLICATION_ERROR, f"{who} exited with code {end.exit_code}"


def signal_name(number: int) -> str:
    """Return the name of a signal: `SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# These functions recognize in the output of PyTorch's ranks whose failure it was.
#
# When a rank ends, the other ranks lose their connections to it and fail too. Those failures are consequences and get
# the class ConnectionLost, so that the first rank's own failure is the cause.

_TABLE_RANK = re.compile(r"rank +: (\d+) \(local_rank: \d+\)")
_TABLE_CODE = re.compile(r"exitcode +: (-?\d+) \(pid: \d+\)")
_UNCAUGHT_OF_PYTHON = {1, -signal.SIGABRT, 128 + signal.SIGABRT}
"""Exit codes, and the signal, after an uncaught exception: gloo's threads may abort Python at its exit (SIGABRT)."""
_LEFT = {-signal.SIGTERM, 128 + signal.SIGTERM}
"""The ends of a rank that was told to stop, or that agreed with such a rank to leave."""
_LEFT_UNTOLD = "the program ended as after SIGTERM, which this pod did not get: perhaps another pod got it"
_GROUP_OUTLIVES_SCRIPT = "terminate called without an active exception"
"""What libstdc++ prints when Python exits while a thread of gloo waits for Python's lock."""
_FREE_THE_GROUP = "if the script was at its end, call destroy_process_group() there (docs/troubleshooting.md)"
_CHANGEABLE = {FailureClass.APPLICATION_ERROR, FailureClass.SIGNAL}


class FailedRank(NamedTuple):
    """A row of the table that torchrun prints at its end; `code` is negative after a signal."""

    rank: int
    code: int


def failed_ranks(lines: Sequence[str]) -> list[FailedRank]:
    """Return the rows of torchrun's table, the first observed failure first; empty without a table."""
    found: list[FailedRank] = []
    rank: int | None = None
    for line in (line.strip() for line in lines):
        if row := _TABLE_RANK.fullmatch(line):
            rank = int(row[1])
        elif rank is not None and (row := _TABLE_CODE.match(line)):
            found.append(FailedRank(rank, int(row[1])))
            rank = None
    return found[::-1]


def recorded(error_file: Path) -> str | None:
    """Return the exception in a file that PyTorch's `record` wrote; None without a readable file."""
    try:
        message = json.loads(error_file.read_bytes())["message"]
        return str(message["message"] if isinstance(message, dict) else message)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def explain(
    report: RankExit,
    end: ProgramEnd,
    lines: Sequence[str],
    error_file: Path,
    *,
    rank: int | None,
    alone: bool,
) -> None:
    """Complete the report of a program that has failed: whose failure it was, and the exception.

    `rank`: that of the program, which may be a script that calls torchrun; None for a command that has started the
    pod's ranks. `alone`: whether the job has no other pod, so that no rank elsewhere can have made a rank leave.
    """
    if end.stopped or report.get("class") not in _CHANGEABLE:
        return
    table = failed_ranks(lines)
    own = [] if rank is None else [FailedRank(rank, -end.signal if end.signal else end.exit_code)]
    rows = table or own
    last = {each.rank: each for each in raised(lines)}
    if rows and (text := recorded(error_file)):
        last[rows[0].rank] = Raised(rows[0].rank, text)
    # Leave out ranks that SIGTERM ended: torchrun sends SIGTERM to the other ranks after a failure.
    ended = [row for row in rows if row.code not in _LEFT]
    if rows and not ended and not alone:
        _connection_lost(report, _LEFT_UNTOLD)
        return
    causes: list[tuple[FailedRank | None, Raised | None]] = [
        (row, (last.get(row.rank) or last.get(None)) if row.code in _UNCAUGHT_OF_PYTHON else None)
        for row in ended
    ] or [(None, each) for each in last.values() if not rows]
    if not causes:
        return
    row, exception = next((each for each in causes if each[1] is None or not each[1].follows), causes[0])
    if row is not None:
        report["rank"] = row.rank
        if exception is None and table:
            _of_row(report, row)
    if exception is not None:
        _explain_exception(report, exception)
    elif any(_GROUP_OUTLIVES_SCRIPT in line for line in lines):
        report["message"] += f"; {_FREE_THE_GROUP}"


def _of_row(report: RankExit, row: FailedRank) -> None:
    if row.code < 0:
        report["class"], report["signal"] = FailureClass.SIGNAL, -row.code
        report["message"] = f"the process of rank {row.rank} was killed by {signal_name(-row.code)}"
    else:
        report["message"] = f"the process of rank {row.rank} exited with code {row.code}"


def _explain_exception(report: RankExit, exception: Raised) -> None:
    if exception.store_port_is_taken:
        report["class"] = FailureClass.PORT_IN_USE
        report["message"] = f"MASTER_PORT is in use: {exception.first_line}"
    elif exception.follows:
        _connection_lost(report, f"the connection to another rank was lost: {exception.first_line}")
    else:
        report["class"] = FailureClass.APPLICATION_ERROR
        report["message"] += f": {exception.first_line}"


def _connection_lost(report: RankExit, message: str) -> None:
    report["class"], report["message"] = FailureClass.CONNECTION_LOST, message
