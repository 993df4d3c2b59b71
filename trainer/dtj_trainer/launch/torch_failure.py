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
from dtj_trainer.launch.failure import signal_name
from dtj_trainer.launch.program import ProgramEnd
from dtj_trainer.launch.termination import RankExit

_FOLLOWS = re.compile(
    "|".join(
        (
            # gloo: transport/tcp/pair.cc and unbound_buffer.cc.
            r"gloo/\S*\].*(Connection closed by peer|Connection reset by peer|Broken pipe|Read error|Write error)",
            r"gloo/\S*\].*([Tt]imed out|[Tt]imeout|Connection refused|No route to host)",
            r"Gloo connectFullMesh failed|failed to pass monitoredBarrier|reached monitoredBarrier, but received",
            # The store of the process group: TCPStore.cpp and socket.cpp of c10d.
            r"Dist(Network|Store)Error: .*([Tt]imed out|[Tt]imeout|[Cc]onnection|recv|send|Broken pipe)",
            r"Dist(Network|Store)Error: .*failed to connect",
            # NCCL, and its watchdog in ProcessGroupNCCL.cpp.
            r"Watchdog caught collective operation timeout|NCCL communicator was aborted|ncclRemoteError",
            r"remote process exited or there was a network error|Connection closed by remote peer",
            r"Some NCCL operations have failed or timed out",
        )
    )
)
_STORE_PORT = re.compile(r"server socket has failed to (listen|bind).*(EADDRINUSE|[Aa]ddress already in use)")
_RANK = re.compile(r"\[rank(\d+)\]: ?")
"""The prefix of PyTorch's own handler of exceptions, after init_process_group."""
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt)(?::|$)")
_TERMINATE = re.compile(r"what\(\): +")
_OF_TORCHRUN = re.compile(r"\b(ChildFailedError|SignalException)\b")
_LINES_OF_A_MESSAGE = 6
_LONGEST_TEXT = 500
_TABLE_RANK = re.compile(r"rank +: (\d+) \(local_rank: \d+\)")
_TABLE_CODE = re.compile(r"exitcode +: (-?\d+) \(pid: \d+\)")
_UNCAUGHT = {1, -signal.SIGABRT, 128 + signal.SIGABRT}
"""Exit codes, and the signal, after an exception that nobody caught: gloo's threads may abort a Python that ends."""
_LEFT = {-signal.SIGTERM, 128 + signal.SIGTERM}
"""The ends of a rank that was told to stop, or that agreed with such a rank to leave."""
_LEFT_UNTOLD = "the program left as after SIGTERM, though this pod was not told to stop"
_CHANGEABLE = {FailureClass.APPLICATION_ERROR, FailureClass.SIGNAL}


class Raised(NamedTuple):
    """An exception that was printed, and its rank where PyTorch printed it too."""

    rank: int | None
    text: str
    """The first line and those that may belong to it."""

    @property
    def first_line(self) -> str:
        """The name of the exception and the first line of its message."""
        return self.text.partition("\n")[0][:_LONGEST_TEXT]

    @property
    def follows(self) -> bool:
        """Whether the exception says that a connection to another rank was lost, or that the rank did not answer."""
        return _FOLLOWS.search(self.text) is not None

    @property
    def store_port_is_taken(self) -> bool:
        """Whether the process group's store could not listen, because another process listens on MASTER_PORT."""
        return _STORE_PORT.search(self.text) is not None


class FailedRank(NamedTuple):
    """A row of the table that torchrun prints at its end; `code` is negative after a signal."""

    rank: int
    code: int


def raised(lines: Sequence[str]) -> list[Raised]:
    """Return the exceptions in a program's output, from the first one. torchrun's own ones are left out."""
    found: list[Raised] = []
    split = [_split(line) for line in lines]
    for at, (rank, text) in enumerate(split):
        if _OF_TORCHRUN.search(text) or not (_EXCEPTION.match(text) or _TERMINATE.match(text)):
            continue
        message = [_TERMINATE.sub("", text, count=1)]
        for other, more in split[at + 1 : at + _LINES_OF_A_MESSAGE]:
            if other != rank or more.startswith("Traceback"):
                break
            message.append(more)
        found.append(Raised(rank, "\n".join(message)))
    return found


def _split(line: str) -> tuple[int | None, str]:
    """Return the rank in the prefix of a line, and the rest of the line."""
    prefix = _RANK.match(line)
    return (int(prefix[1]), line[prefix.end() :].strip()) if prefix else (None, line.strip())


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
