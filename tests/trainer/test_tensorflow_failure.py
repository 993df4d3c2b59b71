"""Whose failure it was, by the output of TensorFlow's tasks. The texts are those of TensorFlow 2.21 on CPUs."""

from __future__ import annotations

import pytest

from dtj_trainer.contract.tensorflow_output import lost_connection
from dtj_trainer.launch.failure import cause_from_last_lines
from dtj_trainer.launch.program import ProgramEnd

ERRORS = "tensorflow.python.framework.errors_impl."
GRAPH = f"""Traceback (most recent call last):
  File "/tmp/mw.py", line 18, in <module>
    step()
{ERRORS}UnavailableError: Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "/tmp/mw.py", line 18, in <module>

"""
RESET = "recvmsg:Connection reset by peer"
REMOTE = """
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling RecvBuf:
:UNKNOWN:Error received from peer  {grpc_message:"Socket closed", grpc_status:14}
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_step_38]"""
UNHEALTHY = """Collective ops is aborted by: Error reported from /job:worker/task:2: The following tasks are \
unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:2
The tasks have crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption, eviction) \
to debug further."""
LOST = {
    "killed": GRAPH + f"Collective ops is aborted by: {RESET}{REMOTE}",
    "ended": GRAPH + f"Collective ops is aborted by: Socket closed{REMOTE}",
    "unhealthy": GRAPH + UNHEALTHY,
    "coordinator": f"""{ERRORS}UnavailableError: Graph execution error:

failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:44717: {RESET}
Additional GRPC error information from remote target /job:ps/replica:0/task:0 while calling RunComponentFunction:
E0000 00:00:1795832758.338795   21463 context.cc:911] Failed to remove function remotely due to failed to connect""",
    "log cut off": f"step\n\nCollective ops is aborted by: {RESET}{REMOTE}",
}
OWN = {
    "own": "ValueError: bad batch 7",
    "own after a lost connection": GRAPH + f"Collective ops is aborted by: {RESET}{REMOTE}\nKeyError: 'x'",
    "shape": f"{ERRORS}InvalidArgumentError: Graph execution error:\n\nCollective ops is aborted by: Shape mismatch",
    "file": f"{ERRORS}UnavailableError: Error executing an HTTP request: libcurl code 6 meaning 'Could not resolve'",
    "of another library": "requests.exceptions.ConnectionError: Connection reset by peer",
    "of Python": "ConnectionResetError: [Errno 104] Connection reset by peer",
}


@pytest.mark.parametrize("text", LOST.values(), ids=LOST)
def test_an_error_that_another_task_caused(text: str) -> None:
    lines = ["step 20", *text.splitlines()]

    found = cause_from_last_lines(ProgramEnd(1), lines)

    assert found is not None
    assert found[0] == "ConnectionLost"
    assert found[1].startswith("the connection to another pod was lost: ")
    assert any(words in found[1] for words in ("Collective ops is aborted by: ", "failed to connect to all"))


@pytest.mark.parametrize("text", OWN.values(), ids=OWN)
def test_an_error_of_the_task_itself(text: str) -> None:
    assert lost_connection(text.splitlines()) is None
