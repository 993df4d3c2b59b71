"""Turns the end of a program into the failure class and the message for the user."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.contract.tensorflow_output import lost_connection
from dtj_trainer.launch.failure_patterns import closing, missing_module, reports_full_disk
from dtj_trainer.launch.program import ProgramEnd
from dtj_trainer.launch.remedies import remedy
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.termination import RankExit

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
    """Describe the end of a process without something that had to be restored, uploaded or answered."""
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
        message = f"{who} exited with code {end.exit_code} (a child ended by {name}?)"
        return FailureClass.APPLICATION_ERROR, message
    return FailureClass.APPLICATION_ERROR, f"{who} exited with code {end.exit_code}"


def signal_name(number: int) -> str:
    """Return the name of a signal: `SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
