"""Recognizes in the output of a TensorFlow program that another task went away. Standard library only.

When a task of TF_CONFIG ends, the others fail with errors of gRPC and of TensorFlow's coordination service. Those
failures are consequences, not causes. Both sides read the output: dtj-launch that of its program, the operator the
end of the log of an image without dtj_trainer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_RAISED = re.compile(
    r"(?:tensorflow\.python\.\S+\.|tf\.errors\.)?"
    r"(?P<name>(?:Unavailable|Aborted|DeadlineExceeded|Cancelled|Internal|PSUnavailable)Error)(?::|$)"
)
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt)(?::|$)")
_LOST = re.compile(
    "|".join(
        (
            # TensorFlow's coordination service. One task, the leader, runs its server.
            r"The following tasks are unhealthy|heartbeat timeout|[Bb]arrier .*(timed out|failed)",
            r"Error reported from /job:|[Cc]oordination service.*(unavailable|failed|[Cc]onnect)",
            # TensorFlow appends the name of the other task to errors of gRPC.
            r"from remote target /job:\w+",
            # gRPC itself reports a lost connection by these messages.
            r"failed to connect to all addresses|recvmsg:|sendmsg:|keepalive watchdog timeout",
            r"Socket closed|Connection reset by peer|Connection refused|Connection timed out|No route to host",
            r"GOAWAY received|Broken pipe",
            # A task that has restarted does not know the sessions from before its restart.
            r"[Ss]ession handle is not found|Graph handle is not found|worker process (has )?restart",
            # NCCL reports the loss of a peer by this message.
            r"remote process exited or there was a network error",
        )
    )
)
_COLLECTIVE = "Collective ops is aborted by: "
_LINES_OF_A_MESSAGE = 100
_LONGEST_TEXT = 300


def lost_connection(lines: Sequence[str]) -> str | None:
    """Return the last exception in the output if it says that another task went away; None for any other output."""
    at = next((at for at in reversed(range(len(lines))) if _EXCEPTION.match(lines[at])), None)
    if at is None:
        # The log may lack the line with the exception's name: a kubelet keeps the last 2048 bytes, and a long stack
        # of the graph follows that line.
        return next((line.strip()[:_LONGEST_TEXT] for line in lines if _COLLECTIVE in line), None)
    raised = _RAISED.match(lines[at])
    if raised is None:
        return None
    message = [lines[at][raised.end() :].strip(), *(line.strip() for line in lines[at + 1 :])]
    why = next((line for line in message[:_LINES_OF_A_MESSAGE] if _LOST.search(line)), None)
    return f"{raised['name']}: {why}"[:_LONGEST_TEXT] if why else None
