"""Recognizes in the output of PyTorch's ranks whose failure it was. Standard library only.

When a rank ends, the other ranks lose their connections to it and fail too. Both sides read the output:
dtj-launch that of its ranks, the operator the end of the log of an image without dtj_trainer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_FOLLOWS = re.compile(
    "|".join(
        (
            # gloo reports a lost peer by these messages, from transport/tcp/pair.cc and unbound_buffer.cc.
            r"gloo/\S*\].*(Connection closed by peer|Connection reset by peer|Broken pipe|Read error|Write error)",
            r"gloo/\S*\].*([Tt]imed out|[Tt]imeout|Connection refused|No route to host)",
            r"Gloo connectFullMesh failed|failed to pass monitoredBarrier|reached monitoredBarrier, but received",
            # c10d's store reports a lost peer by these messages, from TCPStore.cpp and socket.cpp.
            r"Dist(Network|Store)Error: .*([Tt]imed out|[Tt]imeout|[Cc]onnection|recv|send|Broken pipe)",
            r"Dist(Network|Store)Error: .*failed to connect",
            # NCCL, and PyTorch's watchdog of NCCL in ProcessGroupNCCL.cpp, report a lost peer by these messages.
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


class Raised(NamedTuple):
    """An exception that was printed, and its rank where PyTorch printed it too."""

    rank: int | None
    text: str
    """The first line of the exception, and the lines after it that may belong to it."""

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


def raised(lines: Sequence[str]) -> list[Raised]:
    """Return the exceptions in a program's output, from the first one, without the exceptions of torchrun itself."""
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
