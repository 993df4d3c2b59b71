"""Recognizes in the output of PyTorch's ranks whose failure it was.

When a rank ends, the other ranks lose their connections to it and fail too. Those failures only follow, and get the
class ConnectionLost, so that the first rank's own failure is the cause.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.contract.torch_output import Raised, raised
from dtj_trainer.launch.failure import signal_name
from dtj_trainer.launch.program import ProgramEnd
from dtj_trainer.launch.termination import RankExit

_TABLE_RANK = re.compile(r"rank +: (\d+) \(local_rank: \d+\)")
_TABLE_CODE = re.compile(r"exitcode +: (-?\d+) \(pid: \d+\)")
_UNCAUGHT = {1, -signal.SIGABRT, 128 + signal.SIGABRT}
"""Exit codes, and the signal, after an exception that nobody caught: gloo's threads may abort a Python that ends."""
_LEFT = {-signal.SIGTERM, 128 + signal.SIGTERM}
"""The ends of a rank that was told to stop, or that agreed with such a rank to leave."""
_LEFT_UNTOLD = "the program left as after SIGTERM, though this pod was not told to stop"
_GROUP_OUTLIVES_SCRIPT = "terminate called without an active exception"
"""What libstdc++ prints when Python exits while a thread of gloo waits for Python's lock."""
_FREE_THE_GROUP = "if the script had ended, free its process group before the end (docs/troubleshooting.md)"
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
    # torchrun ends the other ranks by SIGTERM.
    ended = [row for row in rows if row.code not in _LEFT]
    if rows and not ended and not alone:
        _connection_lost(report, _LEFT_UNTOLD)
        return
    causes: list[tuple[FailedRank | None, Raised | None]] = [
        (row, (last.get(row.rank) or last.get(None)) if row.code in _UNCAUGHT else None) for row in ended
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
